package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// Version is the protocol version that this package speaks.
	Version = 1
	// MaxMessage is the largest message in bytes, header included.
	MaxMessage = 16384
	// MaxDevices is the largest number of devices in a Welcome.
	MaxDevices = 250
	// MaxText is the largest text in bytes.
	MaxText = 512

	headerSize = 16
)

var (
	magic = [4]byte{'A', 'F', 'X', 'D'}
	order = binary.LittleEndian
)

// Type tells messages apart. Requests of the client are odd, each answer is the request's type plus one.
type Type uint16

// The message types.
const (
	TypeHello   Type = 1
	TypeWelcome Type = 2
	TypeUMEM    Type = 3 // with a memfd
	TypeUMEMOK  Type = 4
	TypeOpen    Type = 5
	TypeOpened  Type = 6 // with an AF_XDP socket
	TypeResume  Type = 7 // with an AF_XDP socket
	TypeResumed Type = 8
	TypeJoin    Type = 9 // with an AF_XDP socket
	TypeJoined  Type = 10
	TypeClose   Type = 11
	TypeClosed  Type = 12
	TypeKick    Type = 13
	TypeKicked  Type = 14 // with an AF_XDP socket
	TypeTuning  Type = 15
	TypeTuned   Type = 16
	TypeError   Type = 0
)

var typeNames = [...]string{
	TypeHello: "HELLO", TypeWelcome: "WELCOME", TypeUMEM: "UMEM", TypeUMEMOK: "UMEM_OK", TypeOpen: "OPEN",
	TypeOpened: "OPENED", TypeResume: "RESUME", TypeResumed: "RESUMED", TypeJoin: "JOIN", TypeJoined: "JOINED",
	TypeClose: "CLOSE", TypeClosed: "CLOSED", TypeKick: "KICK", TypeKicked: "KICKED", TypeTuning: "TUNING",
	TypeTuned: "TUNED", TypeError: "ERROR",
}

func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint16(t))
}

// carriesFD says which messages come with a descriptor: these with exactly one, all others with none.
func (t Type) carriesFD() bool {
	return t == TypeUMEM || t == TypeOpened || t == TypeResume || t == TypeJoin || t == TypeKicked
}

// Message is one message without its header.
type Message interface {
	Type() Type
	append([]byte) ([]byte, error)
	decode([]byte) error
}

type header struct {
	Magic   [4]byte
	Version uint16
	Type    Type
	Length  uint32 // of the whole message
	ID      uint32 // chosen by the client, repeated in the answer; 0 in what the agent sends unasked
}

// Encode returns the bytes of a message.
func Encode(id uint32, m Message) ([]byte, error) {
	b := make([]byte, headerSize, 256)
	b, err := m.append(b)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.Type(), err)
	}
	if len(b) > MaxMessage {
		return nil, fmt.Errorf("encode %s: %d bytes are more than %d", m.Type(), len(b), MaxMessage)
	}
	_, err = binary.Encode(b, order, header{magic, Version, m.Type(), uint32(len(b)), id})
	return b, err
}

// Decode reads one message. Its errors are precise enough to be sent to the peer.
func Decode(b []byte) (id uint32, m Message, err error) {
	var h header
	if _, err := binary.Decode(b, order, &h); err != nil {
		return 0, nil, fmt.Errorf("message of %d bytes is shorter than the header of %d", len(b), headerSize)
	}
	switch {
	case h.Magic != magic:
		return 0, nil, fmt.Errorf("message does not begin with %q", magic[:])
	case uint64(h.Length) != uint64(len(b)):
		return h.ID, nil, fmt.Errorf("message says that it has %d bytes, %d came", h.Length, len(b))
	case h.Version != Version && h.Type != TypeHello && h.Type != TypeError:
		// HELLO and ERROR keep their form in every version, so that two versions can tell each other.
		return h.ID, nil, fmt.Errorf("message of protocol version %d, agreed is %d", h.Version, Version)
	}
	m = newMessage(h.Type)
	if m == nil {
		return h.ID, nil, fmt.Errorf("unknown message type %d", uint16(h.Type))
	}
	if err := m.decode(b[headerSize:]); err != nil {
		return h.ID, nil, fmt.Errorf("%s: %w", h.Type, err)
	}
	return h.ID, m, nil
}

func newMessage(t Type) Message {
	switch t {
	case TypeHello:
		return new(Hello)
	case TypeWelcome:
		return new(Welcome)
	case TypeUMEM:
		return new(UMEM)
	case TypeUMEMOK:
		return new(UMEMOK)
	case TypeOpen:
		return new(Open)
	case TypeOpened:
		return new(Opened)
	case TypeResume:
		return new(Resume)
	case TypeResumed:
		return new(Resumed)
	case TypeJoin:
		return new(Join)
	case TypeJoined:
		return new(Joined)
	case TypeClose:
		return new(Close)
	case TypeClosed:
		return new(Closed)
	case TypeKick:
		return new(Kick)
	case TypeKicked:
		return new(Kicked)
	case TypeTuning:
		return new(Tuning)
	case TypeTuned:
		return new(Tuned)
	case TypeError:
		return new(Error)
	}
	return nil
}

// appendFixed and decodeFixed serve the messages of fixed size.
func appendFixed(b []byte, v any) ([]byte, error) { return binary.Append(b, order, v) }

func decodeFixed(b []byte, v any) error {
	if want := binary.Size(v); len(b) != want {
		return fmt.Errorf("payload has %d bytes, want %d", len(b), want)
	}
	_, err := binary.Decode(b, order, v)
	return err
}

// appendText appends a length and a text, cut to MaxText bytes at a rune's end.
func appendText(b []byte, s string) []byte {
	s = strings.ToValidUTF8(s, "?")
	for len(s) > MaxText {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	b = order.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func decodeText(b []byte) (string, error) {
	if len(b) < 2 {
		return "", fmt.Errorf("text is missing")
	}
	n := int(order.Uint16(b))
	if n > MaxText || len(b) != 2+n {
		return "", fmt.Errorf("text says that it has %d bytes (at most %d), %d came", n, MaxText, len(b)-2)
	}
	if !utf8.Valid(b[2:]) {
		return "", fmt.Errorf("text is not UTF-8")
	}
	return string(b[2:]), nil
}

// Name is a text in a fixed field, padded with zero bytes.
type Name [16]byte

// MakeName makes a Name of s, which must have at most 15 bytes.
func MakeName(s string) (n Name, err error) {
	if len(s) >= len(n) {
		return n, fmt.Errorf("name %q has more than %d bytes", s, len(n)-1)
	}
	copy(n[:], s)
	return n, nil
}

func (n Name) String() string { return cString(n[:]) }

func cString(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
