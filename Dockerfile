# A static binary on nothing: no shell, no libc, no root.
#   docker build --build-arg VERSION=v0.1.0 --build-arg COMMIT=$(git rev-parse --short=12 HEAD) -t reaper .
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 -t reaper .
#   docker run --rm -v "$PWD/reaper.yaml:/config/reaper.yaml:ro" reaper sweep --config /config/reaper.yaml --store datastore:my-project
# Go compiles for the other platform here, instead of running under emulation.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH
WORKDIR /src
# Modules first: this layer changes only with go.mod.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown COMMIT=
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags "-s -w -X main.version=${VERSION} -X main.commit=${COMMIT}" -o /out/reaper ./cmd/reaper
# Where an embedded store may be mounted, writable by the user below.
RUN mkdir -p /out/data

# Distroless static holds CA certificates, time zones and the user nonroot
# (65532), and nothing else.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/reaper /usr/local/bin/reaper
COPY --from=build --chown=65532:65532 /out/data /data
COPY LICENSE /LICENSE
USER 65532:65532
WORKDIR /data
EXPOSE 9464
ARG VERSION=unknown
LABEL org.opencontainers.image.title="reaper" \
      org.opencontainers.image.description="Expiry garbage collection for Google Firestore" \
      org.opencontainers.image.source="https://github.com/reaper-ttl/reaper" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
# The binary is process 1, so it gets SIGTERM itself and saves its cursors.
ENTRYPOINT ["/usr/local/bin/reaper"]
CMD ["--help"]
