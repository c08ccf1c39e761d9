output "name" {
  description = "Name of the bucket."
  value       = aws_s3_bucket.log.bucket
}

output "arn" {
  description = "ARN of the bucket."
  value       = aws_s3_bucket.log.arn
}

output "place" {
  description = "The bucket as a place for the module `roles`."
  value = {
    bucket      = aws_s3_bucket.log.bucket
    topics_dir  = var.topics_dir
    kms_key_arn = var.kms_key_arn
    region      = data.aws_region.here.id
  }
}

data "aws_region" "here" {}
