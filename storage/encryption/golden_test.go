package encryption

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/lru"

	"github.com/coxswain-dev/coxswain/storage"
)

// golden has documents in the form in which kube-apiserver stores them. testdata/golden.py computes them with other
// libraries.
type golden struct {
	Key, Place, Document string
	Stored               map[string][]byte
}

func readGolden(t testing.TB) golden {
	t.Helper()
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	var g golden
	require.NoError(t, json.Unmarshal(text, &g))
	require.Len(t, g.Stored, 5)
	return g
}

// allProviders returns a backend that can read every golden document.
func allProviders(t testing.TB, below storage.Backend) *Backend {
	t.Helper()
	file := configFile(t)
	g := readGolden(t)
	configure(t, file, gcmKeys("key1", g.Key)+fmt.Sprintf("- aescbc: {keys: [{name: key1, secret: %q}]}\n"+
		"- secretbox: {keys: [{name: key1, secret: %q}]}\n"+
		"- kms: {apiVersion: v2, name: plugin, endpoint: \"unix:///none.sock\"}\n", g.Key, g.Key))
	b := open(t, below, Options{File: file})
	plugin := b.table.Load().kms[0]
	key, err := Secret(g.Key).decode()
	require.NoError(t, err)
	plugin.openers = lru.New(maxOpeners)
	for _, kind := range []sourceKind{aesKey, keySeed} {
		e := &envelope{keyID: "key-1", source: []byte("encrypted seed"), kind: kind,
			annotations: map[string][]byte{"version.example.com": []byte("7")}}
		o, err := kind.opener(key)
		require.NoError(t, err)
		plugin.openers.Add(e.sum(), opened{opener: o})
	}
	return b
}

func TestGolden_ReadsDocumentsOfKubernetes(t *testing.T) {
	t.Parallel()
	g := readGolden(t)
	below := startBelow(t)
	b := allProviders(t, below)
	for name, stored := range g.Stored {
		put(t, below, secretKey("golden"), stored)
		kv := get(t, b, secretKey("golden"))
		require.NoError(t, kv.Err, name)
		require.Equal(t, g.Document, string(kv.Value), name)
		require.Equal(t, name != "aesgcm", kv.Stale, "%s: the first provider is aesgcm", name)
	}
}

// The authenticated data ties a document to its key in etcd. aescbc and secretbox have no authenticated data.
func TestGolden_DocumentsCannotBeReadAtAnotherKey(t *testing.T) {
	t.Parallel()
	below := startBelow(t)
	b := allProviders(t, below)
	for name, stored := range readGolden(t).Stored {
		put(t, below, secretKey("elsewhere"), stored)
		kv := get(t, b, secretKey("elsewhere"))
		if name == "aescbc" || name == "secretbox" {
			require.NoError(t, kv.Err, name)
			continue
		}
		require.ErrorContains(t, kv.Err, "message authentication failed", name)
		require.Nil(t, kv.Value, name)
	}
}

func TestGolden_DamageIsAnErrorWithoutTheDocument(t *testing.T) {
	t.Parallel()
	below := startBelow(t)
	b := allProviders(t, below)
	for name, stored := range readGolden(t).Stored {
		for position := len("k8s:enc:"); position < len(stored); position++ {
			broken := append([]byte(nil), stored...)
			broken[position] ^= 0x80
			for change, value := range map[string][]byte{"flipped": broken, "cut": stored[:position]} {
				put(t, below, secretKey("golden"), value)
				kv := get(t, b, secretKey("golden"))
				if kv.Err == nil {
					// CBC has no authentication: a change within its blocks only garbles the document.
					require.Equal(t, "aescbc", name, "%s at %d", change, position)
					continue
				}
				require.NotContains(t, kv.Err.Error(), "Secret")
				require.Contains(t, kv.Err.Error(), "k8s:enc:")
			}
		}
	}
}

func TestSeal_EveryProviderReadsItsOwnDocuments(t *testing.T) {
	t.Parallel()
	for name, provider := range map[string]string{
		"aesgcm":    gcmKeys("key1", key1),
		"aescbc":    strings.ReplaceAll(gcmKeys("key1", key1), "aesgcm", "aescbc"),
		"secretbox": strings.ReplaceAll(gcmKeys("key1", key1), "aesgcm", "secretbox"),
		"identity":  identity,
	} {
		below, file := startBelow(t), configFile(t)
		configure(t, file, provider)
		b := open(t, below, Options{File: file})
		for size := range 70 {
			document := []byte(strings.Repeat("x", size))
			put(t, b, secretKey("a"), document)
			stored := get(t, below, secretKey("a"))
			if name == "identity" {
				require.Equal(t, string(document), string(stored.Value))
			} else {
				require.True(t, strings.HasPrefix(string(stored.Value), "k8s:enc:"+name+":v1:key1:"), name)
				require.NotContains(t, string(stored.Value), "xxxxxx")
			}
			kv := get(t, b, secretKey("a"))
			require.NoError(t, kv.Err)
			require.Equal(t, string(document), string(kv.Value), name)
			require.False(t, kv.Stale)
		}
	}
}

// Equal documents must not look equal in etcd, and a repeated nonce reveals the authentication key of AES-GCM.
func TestSeal_EqualDocumentsAreStoredDifferently(t *testing.T) {
	t.Parallel()
	document := []byte(strings.Repeat("x", 100))
	for _, name := range []string{"aesgcm", "aescbc", "secretbox"} {
		below, file := startBelow(t), configFile(t)
		configure(t, file, strings.ReplaceAll(gcmKeys("key1", key1), "aesgcm", name))
		b := open(t, below, Options{File: file})
		nonces := map[string]bool{}
		for range 10 {
			put(t, b, secretKey("a"), document)
			stored := get(t, below, secretKey("a")).Value
			sealed := stored[len("k8s:enc:"+name+":v1:key1:"):]
			nonces[string(sealed[:12])] = true // the nonce of AES-GCM; the others are longer
		}
		require.Len(t, nonces, 10, name)
	}
	seed, stored := seeded{[]byte(strings.Repeat("s", seedSize))}, map[string]bool{}
	for range 10 {
		sealed, err := seed.append(nil, document, []byte("place"))
		require.NoError(t, err)
		stored[string(sealed[:seedSize])] = true
	}
	require.Len(t, stored, 10, "each document has its own key")
}

func FuzzEnvelope(f *testing.F) {
	g := readGolden(f)
	for _, name := range []string{"kms", "kms-old"} {
		f.Add(g.Stored[name][len("k8s:enc:kms:v2:plugin:"):])
	}
	f.Add([]byte{})
	f.Add([]byte{0x22, 0x02, 0x0a, 0x00})
	f.Add([]byte{0x28, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, stored []byte) {
		e, err := parseEnvelope(stored)
		if err != nil {
			return
		}
		// An envelope that is accepted is the same when it is written again.
		again, err := parseEnvelope(append(append([]byte{0x0a}, appendLength(nil, e.data)...), e.head(nil)...))
		require.NoError(t, err)
		require.Equal(t, e.sum(), again.sum())
		require.Equal(t, e.data, again.data)
	})
}

func appendLength(dst, data []byte) []byte {
	n := uint64(len(data))
	for ; n >= 0x80; n >>= 7 {
		dst = append(dst, byte(n)|0x80)
	}
	return append(append(dst, byte(n)), data...)
}
