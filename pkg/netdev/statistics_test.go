package netdev

import (
	"errors"
	"reflect"
	"testing"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
)

// The kernel takes the request: a driver without counters is told from a NIC that is not there.
func TestVethKeepsNoQueueStatistics(t *testing.T) {
	h := open(t)
	l := veth(t, h, 2)
	if got, err := h.QueueStatistics(l.Index); !errors.Is(err, ErrUnsupported) {
		t.Errorf("statistics of a veth: %+v, %v; want ErrUnsupported", got, err)
	}
	if got, err := h.QueueStatistics(1 << 30); !errors.Is(err, ErrNoDevice) {
		t.Errorf("statistics of no NIC: %+v, %v; want ErrNoDevice", got, err)
	}
}

func TestQueueStatisticsAreThoseOfTheQueuesDirection(t *testing.T) {
	var asked []byte
	message := func(h genetlink.Header, fill func(ae *netlink.AttributeEncoder)) netlink.Message {
		ae := netlink.NewAttributeEncoder()
		fill(ae)
		attrs, err := ae.Encode()
		must(t, err)
		data, err := genetlink.Message{Header: h, Data: attrs}.MarshalBinary()
		must(t, err)
		return netlink.Message{Data: data}
	}
	h := &Handle{netdev: family{name: "netdev", id: 30}, generic: &conn{nl: nltest.Dial(
		func(req []netlink.Message) ([]netlink.Message, error) {
			var g genetlink.Message
			must(t, g.UnmarshalBinary(req[0].Data))
			asked = g.Data
			queue := func(id, direction uint32, rest func(ae *netlink.AttributeEncoder)) netlink.Message {
				return message(g.Header, func(ae *netlink.AttributeEncoder) {
					ae.Uint32(netdevQStatsIndex, 7)
					ae.Uint32(netdevQStatsQueueType, direction)
					ae.Uint32(netdevQStatsQueueID, id)
					rest(ae)
				})
			}
			answer, err := nltest.Multipart([]netlink.Message{
				queue(0, 0, func(ae *netlink.AttributeEncoder) { ae.Uint64(netdevQStatsRxPackets, 1<<33) }),
				queue(1, 0, func(ae *netlink.AttributeEncoder) { ae.Uint32(netdevQStatsRxPackets, 5) }), // a uint as 4 bytes
				queue(2, 0, func(*netlink.AttributeEncoder) {}),
				queue(0, 1, func(ae *netlink.AttributeEncoder) { ae.Uint64(netdevQStatsTxPackets, 9) }),
				{Header: netlink.Header{Type: netlink.Done}, Data: make([]byte, 4)},
			})
			for i := range answer {
				answer[i].Header.Sequence, answer[i].Header.PID = req[0].Header.Sequence, nltest.PID
			}
			return answer, err
		})}}
	got, err := h.QueueStatistics(7)
	must(t, err)
	want := []QueueStatistics{
		{0, RX, new(uint64(1 << 33))}, {1, RX, new(uint64(5))}, {2, RX, nil}, {0, TX, new(uint64(9))},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("statistics: %+v, want %+v", got, want)
	}
	fields := make(map[uint16]uint32)
	must(t, attributes(asked, func(ad *netlink.AttributeDecoder) { fields[ad.Type()] = ad.Uint32() }))
	if !reflect.DeepEqual(fields, map[uint16]uint32{netdevQStatsIndex: 7, netdevQStatsScope: netdevQStatsScopeQueue}) {
		t.Errorf("asked for %v", fields)
	}
}
