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
  description = "Roles by their names: which policies of infra/iam they have in which places, and who may take them on."
  type = map(object({
    grants           = map(list(string)) # place -> names of policies
    service_accounts = list(string)      # "namespace:name"
  }))
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
