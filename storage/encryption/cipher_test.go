package encryption

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"testing"

	"github.com/stretchr/testify/require"
)

// CBC has no checksum: only the padding shows that a document is damaged, or encrypted with another key.
func TestCBC_RejectsWrongPadding(t *testing.T) {
	t.Parallel()
	sealer, err := newCBC(bytes.Repeat([]byte{1}, 32))
	require.NoError(t, err)
	sealed := func(blocks ...byte) []byte {
		stored := make([]byte, aes.BlockSize, aes.BlockSize+len(blocks))
		stored = append(stored, blocks...)
		cipher.NewCBCEncrypter(sealer.block, stored[:aes.BlockSize]).CryptBlocks(stored[aes.BlockSize:], blocks)
		return stored
	}
	// padded returns a block that ends with these bytes.
	padded := func(end ...byte) []byte {
		return append(bytes.Repeat([]byte{'x'}, aes.BlockSize-len(end)), end...)
	}
	whole := bytes.Repeat([]byte{aes.BlockSize}, aes.BlockSize)
	first, last := append([]byte{'x'}, whole[1:]...), padded(4, 4, 4, 'x')
	for name, c := range map[string]struct {
		stored []byte
		err    error
		want   string
	}{
		"one byte":      {sealed(padded(1)...), nil, "xxxxxxxxxxxxxxx"},
		"four bytes":    {sealed(padded(4, 4, 4, 4)...), nil, "xxxxxxxxxxxx"},
		"a whole block": {sealed(append(padded(), whole...)...), nil, "xxxxxxxxxxxxxxxx"},
		"only padding":  {sealed(whole...), nil, ""},
		"none":          {sealed(padded(0)...), errPadding, ""},
		"more than a block": {sealed(append(padded(), padded(aes.BlockSize+1)...)...),
			errPadding, ""},
		"another first byte":             {sealed(padded('x', 4, 4, 4)...), errPadding, ""},
		"another byte in between":        {sealed(padded(4, 5, 4, 4)...), errPadding, ""},
		"another byte before the last":   {sealed(padded(4, 4, 3, 4)...), errPadding, ""},
		"another last byte":              {sealed(last...), errPadding, ""},
		"a block with another beginning": {sealed(first...), errPadding, ""},
		"no block":                       {sealed(), errShort, ""},
		"less than an IV":                {make([]byte, aes.BlockSize-1), errShort, ""},
	} {
		before := bytes.Clone(c.stored)
		document, stale, err := sealer.open(t.Context(), c.stored, nil)
		require.ErrorIs(t, err, c.err, name)
		require.Equal(t, c.want, string(document), name)
		require.False(t, stale, name)
		require.Equal(t, before, c.stored, name)
	}
	_, _, err = sealer.open(t.Context(), append(sealed(padded(1)...), 0), nil)
	require.ErrorContains(t, err, "not a multiple of the block size")
}

func TestCiphers_RejectShortData(t *testing.T) {
	t.Parallel()
	key := bytes.Repeat([]byte{1}, 32)
	g, err := newGCM(key)
	require.NoError(t, err)
	b, err := newBox(key)
	require.NoError(t, err)
	for size := range 12 {
		_, _, err := g.open(t.Context(), make([]byte, size), nil)
		require.ErrorIs(t, err, errShort)
	}
	for size := range boxNonce {
		_, _, err := b.open(t.Context(), make([]byte, size), nil)
		require.ErrorIs(t, err, errShort)
	}
	_, err = newBox(key[1:])
	require.ErrorContains(t, err, "32 bytes")
	_, _, err = plain{}.open(t.Context(), []byte("k8s:enc:aescbc:v1:key1:"), nil)
	require.ErrorIs(t, err, errEncrypted)
}
