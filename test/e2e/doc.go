// Package e2e tests the project on a cluster: agent, CNI plugin and pods, installed with the Helm chart. Its tests have
// the build tag e2e; "make e2e" builds what they need and runs them. README.md describes what a cluster needs.
package e2e
