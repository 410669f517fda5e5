// Package cni is the CNI plugin afxdp-cni: it finds the AF_XDP queues that kubelet gave to a pod and has the node agent
// put them into force for the pod's network namespace.
//
// The plugin runs once for each request and keeps no state. It changes nothing itself: whatever it cannot find out or
// have done is an error with a CNI code that tells the runtime whether to try again, and a pod without queues passes
// without the agent being asked at all.
package cni
