# A bucket for logs. docs/operations/iam.md explains each part.

locals {
  policy = jsondecode(templatefile("${path.module}/../../iam/bucket.json", {
    BUCKET     = aws_s3_bucket.log.bucket
    TOPICS_DIR = var.topics_dir
  }))

  # The bucket refuses any encryption but its own.
  statements = [
    for statement in local.policy.Statement : statement
    if statement.Sid != "DenyOtherEncryption" || var.kms_key_arn != ""
  ]
}

resource "aws_s3_bucket" "log" {
  bucket        = var.name
  force_destroy = var.force_destroy
  tags          = var.tags
}

resource "aws_s3_bucket_public_access_block" "log" {
  bucket                  = aws_s3_bucket.log.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "log" {
  bucket = aws_s3_bucket.log.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "log" {
  bucket = aws_s3_bucket.log.id

  rule {
    bucket_key_enabled = var.kms_key_arn != ""

    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == "" ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn == "" ? null : var.kms_key_arn
    }
  }
}

# Versioning is for manifests: `keyfold log repair` restores one from its versions. S3 cannot version only some objects.
resource "aws_s3_bucket_versioning" "log" {
  bucket = aws_s3_bucket.log.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "log" {
  depends_on = [aws_s3_bucket_versioning.log]
  bucket     = aws_s3_bucket.log.id

  rule {
    id     = "abort-incomplete-uploads"
    status = "Enabled"

    filter {
      prefix = ""
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = var.abort_incomplete_days
    }
  }

  # A collected object becomes a noncurrent version, like an older manifest. Do not set `newer_noncurrent_versions`: a
  # deleted segment is the newest of its noncurrent versions, and would stay permanently.
  rule {
    id     = "expire-noncurrent-versions"
    status = "Enabled"

    filter {
      prefix = ""
    }

    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_days
    }

    expiration {
      expired_object_delete_marker = true
    }
  }

  # Objects that a sink may not delete itself: those of its probe, and the status of a worker that has ended. A running
  # worker writes its own status again every half minute.
  dynamic "rule" {
    for_each = toset(concat(["_probe/"], [for name in var.sinks : "_sinks/${name}/workers/"]))

    content {
      id     = "expire-${replace(trimsuffix(rule.value, "/"), "/", "-")}"
      status = "Enabled"

      filter {
        prefix = "${var.topics_dir}/${rule.value}"
      }

      expiration {
        days = 1
      }
    }
  }
}

resource "aws_s3_bucket_policy" "log" {
  depends_on = [aws_s3_bucket_public_access_block.log]
  bucket     = aws_s3_bucket.log.id
  policy     = jsonencode(merge(local.policy, { Statement = local.statements }))
}
