package config

// Bytes is a size in bytes, in the file a plain number or a Kubernetes quantity such as 256Mi.
type Bytes int64
