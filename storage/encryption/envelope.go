package encryption

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/util/validation"
)

// envelope is Kubernetes' EncryptedObject: an encrypted document with the encrypted source of its key.
type envelope struct {
	data        []byte
	keyID       string
	source      []byte // the key or seed, encrypted by the plugin
	annotations map[string][]byte
	kind        sourceKind
}

// sourceKind is the kind of an envelope's source.
type sourceKind uint64

const (
	aesKey  sourceKind = iota // an AES-GCM key, as Kubernetes wrote before v1.29
	keySeed                   // a seed, from which each document's key is derived
)

// The field numbers of EncryptedObject.
const (
	fieldData protowire.Number = iota + 1
	fieldKeyID
	fieldSource
	fieldAnnotations
	fieldKind
)

// The limits are Kubernetes'.
const (
	maxKeyID       = 1 << 10
	maxSource      = 1 << 10
	maxAnnotations = 32 << 10
)

// head appends the fields after the data, which are the same for all documents of a seed.
func (e *envelope) head(dst []byte) []byte {
	dst = protowire.AppendString(protowire.AppendTag(dst, fieldKeyID, protowire.BytesType), e.keyID)
	dst = protowire.AppendBytes(protowire.AppendTag(dst, fieldSource, protowire.BytesType), e.source)
	for _, name := range slices.Sorted(maps.Keys(e.annotations)) {
		var entry []byte
		entry = protowire.AppendString(protowire.AppendTag(entry, 1, protowire.BytesType), name)
		entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), e.annotations[name])
		dst = protowire.AppendBytes(protowire.AppendTag(dst, fieldAnnotations, protowire.BytesType), entry)
	}
	if e.kind != aesKey {
		dst = protowire.AppendVarint(protowire.AppendTag(dst, fieldKind, protowire.VarintType), uint64(e.kind))
	}
	return dst
}

// parseEnvelope parses an EncryptedObject. The result refers to the memory of b.
func parseEnvelope(b []byte) (*envelope, error) {
	e := &envelope{}
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, fmt.Errorf("the envelope is not intact: %w", protowire.ParseError(n))
		}
		b = b[n:]
		n, err := e.member(number, wire, b)
		if err != nil {
			return nil, fmt.Errorf("the envelope is not intact: %w", err)
		}
		b = b[n:]
	}
	return e, e.check()
}

// member parses the value of one field and returns its length. It skips fields of later versions.
func (e *envelope) member(number protowire.Number, wire protowire.Type, b []byte) (int, error) {
	var value []byte
	n := 0
	switch {
	case number >= fieldData && number <= fieldAnnotations && wire == protowire.BytesType:
		value, n = protowire.ConsumeBytes(b)
	case number == fieldKind && wire == protowire.VarintType:
		var kind uint64
		kind, n = protowire.ConsumeVarint(b)
		e.kind = sourceKind(kind)
	default:
		n = protowire.ConsumeFieldValue(number, wire, b)
	}
	if n < 0 {
		return 0, protowire.ParseError(n)
	}
	switch number {
	case fieldData:
		e.data = value
	case fieldKeyID:
		e.keyID = string(value[:min(len(value), maxKeyID+1)])
	case fieldSource:
		e.source = value
	case fieldAnnotations:
		return n, e.annotation(value)
	}
	return n, nil
}

// annotation parses one entry of the annotations.
func (e *envelope) annotation(b []byte) error {
	var name string
	value := []byte{}
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if wire != protowire.BytesType || number > 2 {
			if n = protowire.ConsumeFieldValue(number, wire, b); n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			continue
		}
		part, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if number == 1 {
			name = string(part)
		} else {
			value = part
		}
	}
	if e.annotations == nil {
		e.annotations = map[string][]byte{}
	}
	e.annotations[name] = value
	return nil
}

// check returns an error if Kubernetes would not accept the envelope.
func (e *envelope) check() error {
	switch {
	case e.kind != aesKey && e.kind != keySeed:
		return fmt.Errorf("unknown encryptedDEKSourceType: %d", e.kind)
	case len(e.data) == 0:
		return errors.New("encrypted data is empty")
	}
	return e.checkSource()
}

// checkSource checks the fields that come from a plugin: all except the data.
func (e *envelope) checkSource() error {
	switch {
	case len(e.source) == 0:
		return errors.New("encrypted DEK source is empty")
	case len(e.source) > maxSource:
		return fmt.Errorf("encrypted DEK source is %d bytes, which exceeds the max size of %d", len(e.source),
			maxSource)
	}
	if err := checkKeyID(e.keyID); err != nil {
		return err
	}
	size := 0
	for name, value := range e.annotations {
		if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 || len(name) > maxKeyID {
			return errors.New("annotations: a name is not a fully qualified domain name")
		}
		size += len(name) + len(value)
	}
	if size > maxAnnotations {
		return fmt.Errorf("total size of annotations is %d, which exceeds the max size of %d", size, maxAnnotations)
	}
	return nil
}

func checkKeyID(id string) error {
	switch {
	case id == "":
		return errors.New("keyID is empty")
	case len(id) > maxKeyID:
		return fmt.Errorf("keyID is longer than the max size of %d", maxKeyID)
	case !utf8.ValidString(id):
		return errors.New("keyID is not UTF-8")
	}
	return nil
}

// sum returns a hash that identifies the source of an envelope, and so its key or seed.
func (e *envelope) sum() [sha256.Size]byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 64+len(e.keyID)+len(e.source)), uint64(e.kind))
	add := func(part []byte) { b = append(binary.BigEndian.AppendUint64(b, uint64(len(part))), part...) }
	add(e.source)
	add([]byte(e.keyID))
	for _, name := range slices.Sorted(maps.Keys(e.annotations)) {
		add([]byte(name))
		add(e.annotations[name])
	}
	return sha256.Sum256(b)
}

const seedSize = 32

// seeded encrypts each document with its own AES-GCM key. The key is derived from the seed and 32 random bytes, which
// are stored before the document. Therefore a nonce never repeats for one key, regardless of the number of documents.
type seeded struct{ seed []byte }

// derive returns the cipher for the random bytes info.
func (s seeded) derive(info []byte) (gcm, error) {
	key, err := hkdf.Expand(sha256.New, s.seed, string(info), seedSize)
	if err != nil {
		return gcm{}, err
	}
	return newGCM(key)
}

// append appends the random bytes and the encrypted document to dst.
func (s seeded) append(dst, document, place []byte) ([]byte, error) {
	start := len(dst)
	dst = append(dst, make([]byte, seedSize)...)
	info := dst[start:]
	if _, err := rand.Read(info); err != nil {
		return nil, err
	}
	t, err := s.derive(info)
	if err != nil {
		return nil, err
	}
	return t.seal(dst, document, place)
}

// sealedSize returns the number of bytes that append adds for a document of this length.
func sealedSize(document int) int { return seedSize + 12 + document + 16 }

// opener decrypts the data of envelopes with the same source.
type opener interface {
	openData(data, place []byte) ([]byte, error)
}

func (s seeded) openData(data, place []byte) ([]byte, error) {
	if len(data) < seedSize {
		return nil, errShort
	}
	t, err := s.derive(data[:seedSize])
	if err != nil {
		return nil, err
	}
	return t.openData(data[seedSize:], place)
}

// opener returns the opener for a decrypted source.
func (k sourceKind) opener(key []byte) (opener, error) {
	if k == aesKey {
		return newGCM(key)
	}
	if len(key) < seedSize {
		return nil, fmt.Errorf("invalid seed length %d used for key generation", len(key))
	}
	return seeded{key}, nil
}
