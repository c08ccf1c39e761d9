variable "name" {
  description = "Name of the bucket. Give the logs a bucket of their own."
  type        = string
}

variable "topics_dir" {
  description = "Folder of the logs, as in `topics.dir`."
  type        = string
  default     = "topics"

  validation {
    condition     = can(regex("^[^/].*[^/]$|^[^/]$", var.topics_dir))
    error_message = "The folder must not begin or end with a slash."
  }
}

variable "kms_key_arn" {
  description = "KMS key for the objects, in the bucket's region. Empty: keys managed by S3 (SSE-S3)."
  type        = string
  default     = ""
}

variable "sinks" {
  description = "Names of the sinks (`name` in their configurations) whose leftovers are deleted."
  type        = list(string)
  default     = []
}

variable "abort_incomplete_days" {
  description = "Days after which an unfinished upload is aborted. Choose more than any upload takes: `segment.ms`, and a replica's largest segment."
  type        = number
  default     = 7
}

variable "noncurrent_days" {
  description = "Days for which an older manifest or a collected segment can be restored. S3 charges for it that long."
  type        = number
  default     = 14
}

variable "force_destroy" {
  description = "Whether `destroy` deletes the bucket with all objects in it."
  type        = bool
  default     = false
}

variable "tags" {
  description = "Tags of the bucket."
  type        = map(string)
  default     = {}
}
