#!/usr/bin/env bash
# Pin every third-party image by its digest: the bases of the Dockerfiles and the images of Compose. Run it from the root
# of the repository, with docker and its buildx, on a machine that reaches the registries:
#
#   infra/images/pin_digests.sh
#
# It edits the files; look at the change and commit it. Run it again after a change of a tag, or for a newer build of one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

files=(infra/images/*/Dockerfile infra/compose/compose.yaml)
images=$(sed -nE 's/^(ARG [A-Z]+_IMAGE=| +image: )(docker\.io\/[^@ ]+).*/\2/p' "${files[@]}" | sort -u)
# All digests are looked up before a file is changed.
edits=()
for image in $images; do
    digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image")
    if [[ ! $digest =~ ^sha256:[0-9a-f]{64}$ ]]; then
        echo "$image: the answer is no digest: ${digest:-nothing}" >&2
        exit 1
    fi
    echo "$image@$digest"
    edits+=(-e "s|([= ])${image//./\\.}(@sha256:[0-9a-f]*)?( .*)?\$|\1$image@$digest\3|")
done
sed -i -E "${edits[@]}" "${files[@]}"
