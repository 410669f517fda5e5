package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/afxdp-project/afxdp/internal/agentapi"
)

// Add has the agent put all of the pod's devices into force for its network namespace and prints prevResult with the
// NICs that they are on.
func (p *Plugin) Add(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), conf.Timeout)
	defer cancel()
	req, err := p.resolve(ctx, conf, args)
	if err != nil {
		return err
	}
	if req == nil {
		prev, err := parseResult(conf)
		if err != nil {
			return err
		}
		return prev.print(p.Stdout)
	}
	a, err := dialAgent(conf.AgentSocket)
	if err != nil {
		return err
	}
	defer a.Close()
	resp, err := a.Attach(ctx, &agentapi.AttachRequest{
		Attachment: req.attachment, Pod: req.pod, NetnsCookie: req.cookie, Allocations: req.allocations,
	})
	if err != nil {
		return agentError("attach the devices of pod "+podString(req.pod), conf.AgentSocket, err)
	}
	if err = req.prev.add(resp.GetNics(), conf.CNIVersion); err == nil {
		err = req.prev.print(p.Stdout)
	}
	if err != nil {
		// The runtime sees a failure, so the agent must not keep the success. DEL follows, but may be late.
		undo, cancel := p.short(conf)
		defer cancel()
		if _, undoErr := a.Detach(undo, &agentapi.DetachRequest{Attachment: req.attachment}); undoErr != nil {
			err = errors.Join(err, fmt.Errorf("undo the attachment: %w", undoErr))
		}
		return err
	}
	return nil
}

// Del has the agent take out the attachment. It needs neither the network namespace nor the pod, both of which may be
// gone, and succeeds when the agent cannot be reached: the agent finds out and undoes the attachment when it is back.
func (p *Plugin) Del(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(conf.AgentSocket); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := p.short(conf)
	defer cancel()
	a, err := dialAgent(conf.AgentSocket)
	if err != nil {
		return err
	}
	defer a.Close()
	_, err = a.Detach(ctx, &agentapi.DetachRequest{Attachment: attachment(conf, args)})
	switch {
	case err == nil || status.Code(err) == codes.NotFound:
		return nil
	case unreachable(err):
		_, _ = fmt.Fprintf(p.Stderr, "afxdp-cni: DEL of %s %s left to the agent, which cannot be reached now: %v\n",
			args.ContainerID, args.IfName, err)
		return nil
	}
	return agentError("detach "+args.ContainerID+" "+args.IfName, conf.AgentSocket, err)
}

// Check verifies that the pod's devices are in force and that prevResult, of the ADD, lists the NICs that they are on.
func (p *Plugin) Check(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), conf.Timeout)
	defer cancel()
	req, err := p.resolve(ctx, conf, args)
	if err != nil || req == nil {
		return err
	}
	if conf.PrevResult == nil {
		return failf(types.ErrInvalidNetworkConfig,
			"network configuration: prevResult is missing, CHECK needs the ADD's result")
	}
	a, err := dialAgent(conf.AgentSocket)
	if err != nil {
		return err
	}
	defer a.Close()
	doing := "check the devices of pod " + podString(req.pod)
	resp, err := a.Check(ctx, &agentapi.CheckRequest{
		Attachment: req.attachment, Pod: req.pod, NetnsCookie: req.cookie, Allocations: req.allocations,
	})
	switch status.Code(err) {
	case codes.OK:
	case codes.FailedPrecondition, codes.NotFound:
		return failf(codeNotInForce, "%s: %s", doing, status.Convert(err).Message())
	default:
		return agentError(doing, conf.AgentSocket, err)
	}
	if missing := req.prev.missing(resp.GetNics()); len(missing) > 0 {
		return failf(codeNotInForce, "%s: prevResult does not list %s", doing, strings.Join(missing, ", "))
	}
	return nil
}

// GC has the agent take out the network's attachments that are not in the list of valid ones. An agent that cannot be
// reached is an error only where the plugin is configured as standalone: it compares with kubelet when it is back.
func (p *Plugin) GC(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if conf.ValidAttachments == nil {
		return failf(types.ErrInvalidNetworkConfig,
			"network configuration: %s is missing; nothing is released without it", keyValid)
	}
	req := &agentapi.CollectGarbageRequest{Network: conf.Name}
	for _, v := range conf.ValidAttachments {
		req.Valid = append(req.Valid,
			&agentapi.Attachment{Network: conf.Name, ContainerId: v.ContainerID, Ifname: v.IfName})
	}
	ctx, cancel := context.WithTimeout(context.Background(), conf.Timeout)
	defer cancel()
	a, err := dialAgent(conf.AgentSocket)
	if err != nil {
		return err
	}
	defer a.Close()
	_, err = a.CollectGarbage(ctx, req)
	if err == nil {
		return nil
	}
	if unreachable(err) && !conf.Standalone {
		_, _ = fmt.Fprintf(p.Stderr, "afxdp-cni: GC of network %s left to the agent, which cannot be reached now: %v\n",
			conf.Name, err)
		return nil
	}
	return agentError("collect the garbage of network "+conf.Name, conf.AgentSocket, err)
}

// Status fails when the plugin is configured as standalone and the agent cannot serve ADD. In a chain it succeeds
// always, as its failure would make the whole node NotReady, for pods without our devices too.
func (p *Plugin) Status(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil || !conf.Standalone {
		return err
	}
	ctx, cancel := p.short(conf)
	defer cancel()
	a, err := dialAgent(conf.AgentSocket)
	if err != nil {
		return err
	}
	defer a.Close()
	if _, err = a.Status(ctx, &agentapi.StatusRequest{}); err != nil {
		return types.NewError(types.ErrPluginNotAvailable,
			fmt.Sprintf("ask the agent at %s for its status: %s", conf.AgentSocket, status.Convert(err).Message()), adviceAgent)
	}
	return nil
}

func podString(pod *agentapi.Pod) string {
	return fmt.Sprintf("%s/%s (%s)", pod.GetNamespace(), pod.GetName(), pod.GetUid())
}
