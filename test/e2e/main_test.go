//go:build e2e

package e2e

import "testing"

// TestCluster tells the story of one installation. Its tests run in this order, which matters, since they share nodes,
// queues and agents.
func TestCluster(t *testing.T) {
	c := newCluster(t)
	c.prepare(t)
	t.Run("the chart installs", func(t *testing.T) {
		if err := c.install(nil); err != nil {
			c.diagnose(t, prefix)
			t.Fatal(err)
		}
	})
	if t.Failed() {
		return
	}
	for _, step := range []struct {
		name string
		test func(*testing.T, *cluster)
	}{
		{"the installer mounts a bpffs where the node has none", bpffsMounted},
		{"the nodes offer as many devices as their NICs have queues", resourcesAppear},
		{"the chart's own test takes a queue", chartTests},
		{"two restricted pods with an arbitrary UID on two nodes exchange packets", twoPodsExchange},
		{"pods that share a NIC by queues never see each other's packets", sharedNIC},
		{"a pod waits while all queues are taken and starts when one is freed", pendingUntilFreed},
		{"pods of all kinds get their queues", kindsOfPods},
		{"a pod deleted with force and grace 0 leaves all queues free", forceDelete},
		{"a rolling update of a Deployment gets its queues", rollingUpdate},
		{"the admission policy refuses what could enter the node's network", policyRefuses},
		{"the CNI plugin's entry comes back when the configuration is rewritten", conflistRewritten},
		{"a lost NIC is told and its devices come back with it", nicLost},
		{"after a restart of kubelet all devices are allocatable again", kubeletRestart},
		{"agents are replaced under traffic without loss", agentsReplacedUnderTraffic},
		{"changed pools take effect without a restart and keep leases", poolsChanged},
		{"bad pools are refused and the old ones stay", badPools},
		{"without the agent pods with queues wait and others start", agentDown},
		{"the agent needs each of its capabilities", capabilitiesNeeded},
		{"a NetworkAttachmentDefinition's call puts a pod's queues into force", attachedByDelegate},
		{"after a reboot the Deployment's pod gets its packets", nodeRebooted},
		{"uninstalling under a lease restores the NIC and tells the pod", uninstalledWithLease},
		{"uninstalling leaves nothing", uninstalledLeavesNothing},
	} {
		t.Run(step.name, func(t *testing.T) { step.test(t, c) })
	}
}
