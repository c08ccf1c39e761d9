# A log and its replica in another region, each with its own key, and roles for all services.

terraform {
  required_version = ">= 1.6"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
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

provider "aws" {
  region = "eu-central-1"
}

provider "aws" {
  alias  = "replica"
  region = "eu-west-1"
}

resource "aws_kms_key" "source" {
  description         = "keyfold, the log"
  enable_key_rotation = true
}

resource "aws_kms_key" "replica" {
  provider            = aws.replica
  description         = "keyfold, the replica"
  enable_key_rotation = true
}

module "source" {
  source      = "../bucket"
  name        = "example-keyfold-log"
  kms_key_arn = aws_kms_key.source.arn
  sinks       = ["users"]
}

module "replica" {
  source      = "../bucket"
  providers   = { aws = aws.replica }
  name        = "example-keyfold-log-dr"
  kms_key_arn = aws_kms_key.replica.arn
  sinks       = ["users"] # after a promotion the sink writes here
}

module "roles" {
  source            = "../roles"
  oidc_provider_arn = var.oidc_provider_arn
  oidc_issuer       = var.oidc_issuer

  places = {
    source  = module.source.place
    replica = module.replica.place
  }

  # Sink and compactor have rights in both places, so a promotion need not wait for IAM. Without `topics` a role has its
  # rights in all topics.
  roles = {
    sink = {
      grants           = { source = ["sink"], replica = ["sink"] }
      service_accounts = ["keyfold:keyfold-sink"]
      topics           = "users*" # of the sink's `topics`
      sink             = "users"
    }
    compactor = {
      grants           = { source = ["compactor", "keys"], replica = ["compactor", "keys"] } # `keys` for `keys.directory`
      service_accounts = ["keyfold:keyfold-compactor"]
    }
    replica = {
      grants           = { source = ["replica-source"], replica = ["replica-target"] }
      service_accounts = ["keyfold:keyfold-replica"]
    }
    reader = {
      grants           = { source = ["reader"], replica = ["reader"] }
      service_accounts = ["analytics:reader"]
    }
    server = {
      grants           = { source = ["reader", "serve"] }
      service_accounts = ["keyfold:keyfold-serve"]
    }
    table = {
      grants           = { source = ["reader", "table"] } # tables below `tables` in the log's bucket
      service_accounts = ["keyfold:keyfold-table"]
    }
    restore = {
      grants           = { source = ["reader", "restore"], replica = ["reader", "restore"] }
      service_accounts = ["keyfold:keyfold-restore"]
    }
    repair = {
      grants           = { source = ["reader", "repair"], replica = ["reader", "repair"] }
      service_accounts = ["keyfold:keyfold-repair"]
    }
    on-call = {
      grants           = { source = ["operator"] } # pauses and resumes replicas, and reads no log
      service_accounts = ["keyfold:keyfold-on-call"]
    }
    operator = {
      grants = {
        source  = ["replica-source", "replica-target", "operator"]
        replica = ["replica-source", "replica-target", "operator"]
      }
      service_accounts = ["keyfold:keyfold-operator"]
    }
  }
}

output "roles" {
  description = "ARNs of the roles, for the service accounts."
  value       = module.roles.arns
}
