// Package kube is the project's one way to the API server. The node agent uses it for Events, and for the two annotations
// of its node by which an uninstallation is asked for and reported; it works without all of that. [Uninstall] is the other
// side of those annotations.
package kube
