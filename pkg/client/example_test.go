package client_test

import (
	"context"
	"log"
	"os/signal"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/afxdp-project/afxdp/pkg/busypoll"
	"github.com/afxdp-project/afxdp/pkg/client"
	"github.com/afxdp-project/afxdp/pkg/xsk"
)

// A program that sends every packet back to where it came from, on all queues that its container was given.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()

	path, err := client.DefaultPath() // what the AFXDP_<POOL> variable says
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.Connect(ctx, path)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close() // keep the connection for as long as the queues are used
	set, err := c.OpenAll(client.AllConfig{})
	if err != nil {
		log.Print(err)
		return
	}
	defer set.Close()

	queues := make([]*busypoll.Queue, len(set.Queues))
	loops := make([]*busypoll.Loop, len(set.Queues))
	for i, q := range set.Queues {
		queues[i] = &busypoll.Queue{
			Name: q.Device.Netdev, Socket: q.Socket, Rings: q.Rings, UMEM: q.UMEM, Frames: set.Frames[i], KickTX: q.Kick,
			Handle: sendBack,
		}
		if loops[i], err = busypoll.NewLoop(queues[i:i+1], busypoll.Config{}); err != nil {
			log.Print(err)
			return
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, loop := range loops {
		g.Go(func() error { return loop.Run(ctx) }) // a thread of its own for each queue
	}
	g.Go(func() error {
		for {
			for i, q := range set.Queues { // whether busy polling works changes when a link goes down and up
				if status, err := q.BusyPolling(); err == nil {
					queues[i].SetBusyPolling(status.Active)
				}
			}
			select {
			case <-c.Done(): // the lease has ended
				stop()
				return nil
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second):
			}
		}
	})
	if err := g.Wait(); err != nil {
		log.Print(err)
	}
}

// sendBack swaps the Ethernet addresses of each packet, in place, and has all of them sent.
func sendBack(q *busypoll.Queue, packets []xsk.Desc) (transmit int) {
	for _, d := range packets {
		p := q.UMEM.Packet(d)
		var target [6]byte
		copy(target[:], p[0:6])
		copy(p[0:6], p[6:12])
		copy(p[6:12], target[:])
	}
	return len(packets)
}
