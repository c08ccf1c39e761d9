variable "prefix" {
  description = "Names of roles and policies begin with it."
  type        = string
  default     = "keyfold"
}

variable "places" {
  description = "Buckets with logs, by a name that `roles` uses: the output `place` of the module `bucket`."
  type = map(object({
    bucket      = string
    topics_dir  = string
    kms_key_arn = string
    region      = string
  }))
}

variable "roles" {
  description = "Roles by their names: which policies of infra/iam they have in which places, who may take them on, and for which topics."
  type = map(object({
    grants           = map(list(string))     # place -> names of policies
    service_accounts = list(string)          # "namespace:name"
    topics           = optional(string, "*") # a topic's folder, or a pattern of them with `*` and `?`
    sink             = optional(string, "*") # of a sink: `name` in its configuration, as it stands in `_sinks/`
  }))

  validation {
    condition     = alltrue([for role in values(var.roles) : can(regex("^[^/]+$", role.topics)) && can(regex("^[^/]+$", role.sink))])
    error_message = "A role's topics and sink must not be empty or hold a slash; leave them out for all."
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
