variable "prefix" {
  description = "Prefix of the names of roles and policies."
  type        = string
  default     = "keyfold"
}

variable "places" {
  description = "Buckets with logs or tables, by the name that `roles` uses. Those with logs are outputs `place` of the module `bucket`."
  type = map(object({
    bucket      = string
    topics_dir  = string
    kms_key_arn = string
    region      = string
    tables_dir  = optional(string, "tables") # folder of Iceberg tables
  }))
}

variable "roles" {
  description = "Roles by name: their policies of infra/iam in each place, the service accounts that may assume them, and their topics."
  type = map(object({
    grants           = map(list(string))     # place -> names of policies
    service_accounts = list(string)          # "namespace:name"
    topics           = optional(string, "*") # a topic's folder, or a pattern of them with `*` and `?`
    sink             = optional(string, "*") # of a sink: `name` in its configuration, as it stands in `_sinks/`
  }))

  validation {
    condition     = alltrue([for role in values(var.roles) : can(regex("^[^/]+$", role.topics)) && can(regex("^[^/]+$", role.sink))])
    error_message = "A role's topics and sink must not be empty or contain a slash. Omit them for all topics and sinks."
  }
}

variable "oidc_provider_arn" {
  description = "ARN of the IAM OIDC provider of the Kubernetes cluster."
  type        = string
}

variable "oidc_issuer" {
  description = "The provider's issuer, without https://."
  type        = string
}

variable "tags" {
  description = "Tags of roles and policies."
  type        = map(string)
  default     = {}
}
