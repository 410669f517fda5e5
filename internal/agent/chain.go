package agent

import (
	"context"
	"path/filepath"
	"time"

	"github.com/afxdp-project/afxdp/internal/conflist"
)

// chainWait is between two looks at whether the agent and kubelet are there for pods.
const chainWait = 200 * time.Millisecond

// newChain makes what keeps the CNI plugin in the node's network configuration, nil where it is not wanted. It calls changed
// when it has found out more, the first time after its first look.
func newChain(c Config, changed func()) *conflist.Keeper {
	if c.CNIConfDir == "" || !c.Chain {
		return nil
	}
	return conflist.New(conflist.Config{
		Dir: c.CNIConfDir, BinDir: c.CNIBinDir, AgentSocket: filepath.Join(c.RunDir, socketName), KubeletRoot: c.KubeletRoot,
		Changed: func(s conflist.Status) {
			if s.Chained {
				c.Log.Info("CNI plugin chained", "file", s.File, "problem", s.Reason)
			} else {
				c.Log.Warn("CNI plugin not chained", "file", s.File, "reason", s.Reason)
			}
			changed()
		},
	})
}

// keepChained keeps the CNI plugin in the node's network configuration. It begins when kubelet is found where the plugin
// will look for it: with a wrong root directory the plugin could not tell which pods have devices and would refuse all.
func (a *Agent) keepChained(ctx context.Context) error {
	if a.chain == nil {
		a.unchainOwn()
		return nil
	}
	ticker := time.NewTicker(chainWait)
	defer ticker.Stop()
	for a.registered() != nil || !a.kubeletAnswers(ctx) {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
	a.chain.Keep(ctx)
	return nil
}

// unchainOwn takes out what an agent has put in that was to chain.
func (a *Agent) unchainOwn() {
	if a.config.CNIConfDir == "" {
		return
	}
	if err := conflist.RemoveOwn(a.config.CNIConfDir); err != nil {
		a.log.Error("take the CNI plugin out of the chain", "error", err)
	}
}

func (a *Agent) kubeletAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := a.kubelet.List(ctx)
	return err == nil
}
