package encryption

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/kmstest"
)

// openKMS returns a backend whose plugin is running, with a fake clock.
func openKMS(t *testing.T, below storage.Backend, provider string, o Options) *Backend {
	t.Helper()
	o.File = configFile(t)
	configure(t, o.File, provider+identity)
	b := open(t, below, o)
	plugin := b.table.Load().kms[0]
	require.Eventually(t, func() bool { return plugin.ask(testContext(t)) == nil }, patience, 5*time.Millisecond)
	plugin.mu.Lock()
	defer plugin.mu.Unlock()
	plugin.health = errNotAsked
	return b
}

// calls returns the number of successful calls of a method of the plugin.
func calls(t *testing.T, b *Backend, method string) (n int) {
	t.Helper()
	families, err := b.Metrics.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "apiserver_envelope_encryption_kms_operations_latency_seconds" {
			continue
		}
		for _, m := range f.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			if strings.HasSuffix(labels["method_name"], method) && labels["grpc_status_code"] == "OK" {
				n += int(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return n
}

func TestKMS_WritesMakeNoCallsAndReadsMakeOnePerSeed(t *testing.T) {
	t.Parallel()
	dir, below := socketDir(t), startBelow(t)
	provider, _ := startPlugin(t, dir)
	b := openKMS(t, below, provider, Options{})
	for _, name := range []string{"a", "b", "c"} {
		put(t, b, secretKey(name), secret(name))
		stored := get(t, below, secretKey(name))
		require.True(t, strings.HasPrefix(string(stored.Value), "k8s:enc:kms:v2:plugin:"))
		require.NotContains(t, string(stored.Value), "password")
		kv := get(t, b, secretKey(name))
		require.Equal(t, secret(name), kv.Value)
		require.False(t, kv.Stale)
	}
	require.Equal(t, 1, calls(t, b, "Encrypt"))
	require.Zero(t, calls(t, b, "Decrypt"))

	other := openKMS(t, below, provider, Options{})
	for _, name := range []string{"a", "b", "c"} {
		kv := get(t, other, secretKey(name))
		require.Equal(t, secret(name), kv.Value)
		require.False(t, kv.Stale, "the seed of another server is current too")
	}
	require.Equal(t, 1, calls(t, other, "Decrypt"))
}

func TestKMS_ANewKeyMakesDocumentsStale(t *testing.T) {
	t.Parallel()
	dir, below, clock := socketDir(t), startBelow(t), newClock()
	provider, _ := startPlugin(t, dir)
	b := openKMS(t, below, provider, Options{Clock: clock})
	put(t, b, secretKey("a"), secret("a"))
	require.NoError(t, kmstest.Set(dir, kmstest.KeyID, "key-2"))
	plugin := b.table.Load().kms[0]
	require.NoError(t, plugin.check(testContext(t)))
	clock.Step(healthyTTL)
	require.NoError(t, plugin.check(testContext(t)))
	require.Equal(t, 2, calls(t, b, "Encrypt"))
	kv := get(t, b, secretKey("a"))
	require.Equal(t, secret("a"), kv.Value)
	require.True(t, kv.Stale)
	put(t, b, secretKey("a"), secret("a"))
	require.False(t, get(t, b, secretKey("a")).Stale)
}

func TestKMS_WithoutThePluginWritesContinueForThreeMinutes(t *testing.T) {
	t.Parallel()
	dir, below, clock := socketDir(t), startBelow(t), newClock()
	provider, kill := startPlugin(t, dir)
	b := openKMS(t, below, provider, Options{Clock: clock})
	put(t, b, secretKey("a"), secret("a"))
	kill()
	checks := b.Checks()
	require.Equal(t, []string{"kms-providers", "kms-provider-0"}, []string{checks[0].Name, checks[1].Name})
	clock.Step(healthyTTL)
	require.ErrorContains(t, checks[0].Run(testContext(t)), "KMS plugin plugin: status:")
	clock.Step(writeTTL - healthyTTL - time.Second)
	put(t, b, secretKey("b"), secret("b"))
	clock.Step(2 * time.Second)
	_, err := b.Commit(testContext(t), []storage.Write{{Op: storage.Create, Key: secretKey("c"), Value: secret("c")}})
	require.ErrorContains(t, err, "has not been healthy for 3m0s")
	require.Equal(t, secret("b"), get(t, b, secretKey("b")).Value, "reads continue")
	put(t, b, storage.Key{Collection: "core/configmaps", Namespace: "a", Name: "b"}, secret("b"))

	startPlugin(t, dir)
	clock.Step(unhealthyTTL)
	require.Eventually(t, func() bool {
		clock.Step(unhealthyTTL)
		return checks[0].Run(testContext(t)) == nil
	}, patience, 10*time.Millisecond)
	put(t, b, secretKey("c"), secret("c"))
	require.Equal(t, 1, calls(t, b, "Encrypt"), "the seed is used as long as the plugin has the key")
}

// A server that starts without its plugin serves all other documents. It serves the encrypted ones when the plugin is
// available.
func TestKMS_AServerStartsWithoutItsPlugin(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir, below, clock := socketDir(t), startBelow(t), newClock()
	provider, kill := startPlugin(t, dir)
	put(t, openKMS(t, below, provider, Options{}), secretKey("a"), secret("a"))
	put(t, below, secretKey("plain"), secret("plain"))
	kill()
	file := configFile(t)
	configure(t, file, provider+identity)
	b := open(t, below, Options{File: file, Clock: clock})
	s, secrets := openStore(t, b)
	_, err := secrets.Get(ctx, "default", "a", storage.At{})
	require.ErrorAs(t, err, new(*storage.Damaged))
	require.ErrorContains(t, err, "failed to decrypt DEK")
	_, err = secrets.Get(ctx, "default", "plain", storage.At{})
	require.NoError(t, err)
	_, err = s.Commit(ctx, storage.Write{Op: storage.Create, Key: secretKey("b"), Value: secret("b")})
	require.ErrorContains(t, err, "has not encrypted a seed yet")

	following, stop := context.WithCancel(ctx)
	mended := make(chan int)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.Follow(following, func(ctx context.Context) {
			select {
			case mended <- s.Repair(ctx):
			case <-ctx.Done():
			}
		})
	}()
	startPlugin(t, dir)
	n := 0
	for n == 0 {
		select {
		case n = <-mended:
		case <-time.After(5 * time.Millisecond):
			clock.Step(pollInterval)
		}
	}
	stop()
	<-ended
	require.Equal(t, 1, n)
	_, err = secrets.Get(ctx, "default", "a", storage.At{})
	require.NoError(t, err)
}

func TestKMS_AnUnhealthyPluginIsReportedAndNotCalledAgainAtOnce(t *testing.T) {
	t.Parallel()
	dir, below, clock := socketDir(t), startBelow(t), newClock()
	provider, _ := startPlugin(t, dir)
	b := openKMS(t, below, provider, Options{Clock: clock})
	put(t, b, secretKey("a"), secret("a"))
	plugin := b.table.Load().kms[0]
	for name, c := range map[string]struct{ file, content, want string }{
		"ill":     {kmstest.Healthz, "no disk", `unexpected healthz status: "no disk"`},
		"no key":  {kmstest.KeyID, " " + strings.Repeat("x", maxKeyID), "keyID is longer than the max size"},
		"no seed": {kmstest.Lost, "key-9", ""},
	} {
		require.NoError(t, kmstest.Set(dir, c.file, c.content))
		err := plugin.ask(testContext(t))
		if c.want == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.want, name)
		}
		require.NoError(t, kmstest.Set(dir, c.file, ""))
	}

	require.NoError(t, kmstest.Set(dir, kmstest.Lost, "key-1"))
	other := openKMSLost(t, below, provider, clock)
	for range 3 {
		kv := get(t, other, secretKey("a"))
		require.ErrorContains(t, kv.Err, "the key key-1 is lost")
	}
	require.NoError(t, kmstest.Set(dir, kmstest.Lost, ""))
	require.Error(t, get(t, other, secretKey("a")).Err, "the failure is cached for a while")
	clock.Step(unhealthyInterval)
	require.Equal(t, secret("a"), get(t, other, secretKey("a")).Value)
}

// openKMSLost returns a backend whose plugin cannot encrypt.
func openKMSLost(t *testing.T, below storage.Backend, provider string, clock clock.WithTicker) *Backend {
	t.Helper()
	file := configFile(t)
	configure(t, file, provider+identity)
	return open(t, below, Options{File: file, Clock: clock})
}

func TestKMS_ACanceledReadIsNoOutage(t *testing.T) {
	t.Parallel()
	dir, below := socketDir(t), startBelow(t)
	provider, _ := startPlugin(t, dir)
	put(t, openKMS(t, below, provider, Options{}), secretKey("a"), secret("a"))
	b := openKMS(t, below, provider, Options{})
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	kv := get(t, below, secretKey("a"))
	b.open(ended, b.table.Load(), &kv)
	require.Error(t, kv.Err)
	require.Equal(t, secret("a"), get(t, b, secretKey("a")).Value)
}
