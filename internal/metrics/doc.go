// Package metrics makes what the agent knows and does into Prometheus metrics. docs/metrics.md describes each of them.
package metrics
