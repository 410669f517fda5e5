// Package conflist keeps the entry of the CNI plugin afxdp-cni in the node's first CNI configuration list, so that the
// plugin is called for every pod after the plugins of the node's network.
//
// The files belong to the main network, which may rewrite, rename or replace them at any time. So an entry is inserted
// as text and taken out as text: not a byte that is not ours changes. A file is replaced by renaming, so that the
// container runtime reads the old or the new one, and whatever does not look as expected is left alone.
package conflist
