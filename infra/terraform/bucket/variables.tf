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
    error_message = "A folder, without slashes at its ends."
  }
}

variable "kms_key_arn" {
  description = "Key that objects are encrypted with, in the bucket's region. Empty: keys of S3's own (SSE-S3)."
  type        = string
  default     = ""
}

variable "sinks" {
  description = "Names of the sinks (`name` in their configurations), whose leftovers are cleared away."
  type        = list(string)
  default     = []
}

variable "abort_incomplete_days" {
  description = "After so many days an upload that nobody ended is aborted. Longer than any upload is under way: `segment.ms`, and a replica's largest segment."
  type        = number
  default     = 7
}

variable "noncurrent_days" {
  description = "For so many days an older manifest, or a segment that was collected, can be brought back. It is paid for as long."
  type        = number
  default     = 14
}

variable "force_destroy" {
  description = "Whether `destroy` deletes the bucket with all that is in it."
  type        = bool
  default     = false
}

variable "tags" {
  description = "Tags of the bucket."
  type        = map(string)
  default     = {}
}
