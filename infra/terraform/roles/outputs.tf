output "arns" {
  description = "ARNs of the roles, for the annotation `eks.amazonaws.com/role-arn` of the service accounts."
  value       = { for name, role in aws_iam_role.service : name => role.arn }
}
