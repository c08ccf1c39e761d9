# Roles for the services' service accounts in a Kubernetes cluster (IRSA), with the policies of infra/iam.

locals {
  grants = {
    for grant in flatten([
      for role, said in var.roles : [
        for place, policies in said.grants : [
          for policy in policies : { role = role, place = place, policy = policy }
        ]
      ]
    ]) : "${grant.role}/${grant.place}/${grant.policy}" => grant
  }

  documents = {
    for key, grant in local.grants : key => jsondecode(templatefile("${path.module}/../../iam/${grant.policy}.json", {
      BUCKET      = var.places[grant.place].bucket
      TOPICS_DIR  = var.places[grant.place].topics_dir
      TABLES_DIR  = var.places[grant.place].tables_dir
      TOPICS      = var.roles[grant.role].topics
      SINK        = var.roles[grant.role].sink
      KMS_KEY_ARN = var.places[grant.place].kms_key_arn
      REGION      = var.places[grant.place].region
    }))
  }
}

resource "aws_iam_policy" "grant" {
  for_each = local.grants

  name        = "${var.prefix}-${each.value.role}-${each.value.place}-${each.value.policy}"
  description = "keyfold: ${each.value.policy}.json in ${var.places[each.value.place].bucket}"
  tags        = var.tags

  # A bucket without a KMS key needs no right to one.
  policy = jsonencode(merge(local.documents[each.key], {
    Statement = [
      for statement in local.documents[each.key].Statement : statement
      if statement.Sid != "UseKey" || var.places[each.value.place].kms_key_arn != ""
    ]
  }))
}

resource "aws_iam_role" "service" {
  for_each = var.roles

  name = "${var.prefix}-${each.key}"
  tags = var.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRoleWithWebIdentity"
      Principal = { Federated = var.oidc_provider_arn }
      Condition = {
        StringEquals = {
          "${var.oidc_issuer}:aud" = "sts.amazonaws.com"
          "${var.oidc_issuer}:sub" = [for account in each.value.service_accounts : "system:serviceaccount:${account}"]
        }
      }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "grant" {
  for_each = local.grants

  role       = aws_iam_role.service[each.value.role].name
  policy_arn = aws_iam_policy.grant[each.key].arn
}
