package encryption

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/util/uuid"
	kmsapi "k8s.io/kms/apis/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// The intervals are kube-apiserver's. If the plugin does not answer, writes continue with the current seed for
// writeTTL. This limits the time during which objects are written with the old key after the plugin's key has changed.
const (
	healthyInterval   = time.Minute
	unhealthyInterval = 10 * time.Second
	healthyTTL        = 20 * time.Second // the largest age of an answer that /readyz reports
	unhealthyTTL      = 3 * time.Second
	writeTTL          = 3 * time.Minute
	maxOpeners        = 4096
)

// kms encrypts with a plugin. The plugin encrypts one seed for each of its keys, and the key of each document is
// derived from the seed. A write does not call the plugin. A read calls it once for each seed that this process has not
// seen.
type kms struct {
	config  KMS
	client  kmsapi.KeyManagementServiceClient
	conn    *grpc.ClientConn
	clock   clock.Clock
	log     *slog.Logger
	metrics *kmsMetrics

	state   atomic.Pointer[seed] // the seed for writes; nil until the plugin has encrypted one
	openers *lru.Cache           // sha256 of a source → opened
	down    atomic.Pointer[outage]

	mu      sync.Mutex // held during a call of Status; guards the fields below
	checked time.Time
	health  error
}

// seed is a seed for writes.
type seed struct {
	seeded
	keyID string
	head  []byte       // the end of every envelope
	until atomic.Int64 // when it expires, in Unix nanoseconds
}

// opened is an opener, or until a time the error of the plugin.
type opened struct {
	opener opener
	err    error
	until  time.Time
}

// outage records that the plugin does not answer. No document is sent to it before the outage ends.
type outage struct {
	err   error
	until time.Time
}

// reconnect has short delays, to find a restarted plugin soon: connecting to a local socket is cheap.
var reconnect = grpc.ConnectParams{MinConnectTimeout: time.Second,
	Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: 2 * time.Second}}

var errNotAsked = errors.New("the plugin has not been asked yet")

func newKMS(config KMS, c clock.Clock, log *slog.Logger, m *kmsMetrics) (*kms, error) {
	u, err := url.Parse(config.Endpoint)
	if err != nil {
		return nil, err
	}
	address := u.Path
	if address == "" { // unix:@abstract
		address = u.Opaque
	}
	if u.Host != "" { // unix://@abstract
		address = u.Host + address
	}
	conn, err := grpc.NewClient("passthrough:///kms", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(reconnect),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", address)
		}))
	if err != nil {
		return nil, fmt.Errorf("KMS plugin %s: %w", config.Name, err)
	}
	return &kms{config: config, conn: conn, client: kmsapi.NewKeyManagementServiceClient(conn), clock: c, log: log,
		metrics: m, openers: lru.New(maxOpeners), health: errNotAsked}, nil
}

func (k *kms) close() { _ = k.conn.Close() }

// same reports whether a configuration is for this plugin, with the same settings.
func (k *kms) same(other *KMS) bool {
	return k.config.Name == other.Name && k.config.Endpoint == other.Endpoint && k.config.timeout() == other.timeout()
}

// check returns nil if the plugin is healthy. It uses an answer of the last healthyTTL or unhealthyTTL, if there is
// one.
func (k *kms) check(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	ttl := healthyTTL
	if k.health != nil {
		ttl = unhealthyTTL
	}
	if k.health != errNotAsked && k.clock.Since(k.checked) < ttl {
		return k.health
	}
	k.health = k.ask(context.WithoutCancel(ctx)) // other callers use the answer, too
	k.checked = k.clock.Now()
	if k.health == nil {
		k.down.Store(nil)
	}
	return k.health
}

// ask calls Status and, if the plugin's key has changed, rotates the seed.
func (k *kms) ask(ctx context.Context) error {
	until := k.clock.Now().Add(writeTTL) // from before the call, as an upper bound
	var answer *kmsapi.StatusResponse
	err := k.call(ctx, "Status", func(ctx context.Context) (err error) {
		answer, err = k.client.Status(ctx, &kmsapi.StatusRequest{})
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("KMS plugin %s: status: %w", k.config.Name, err)
	case answer.Healthz != "ok":
		return fmt.Errorf("KMS plugin %s: unexpected healthz status: %.200q", k.config.Name, answer.Healthz)
	case answer.Version != "v2" && answer.Version != "v2beta1":
		return fmt.Errorf("KMS plugin %s: expected API version v2, got %.200q", k.config.Name, answer.Version)
	}
	if err := checkKeyID(answer.KeyId); err != nil {
		k.metrics.invalidKeyID(k.config.Name, answer.KeyId)
		return fmt.Errorf("KMS plugin %s: status: %w", k.config.Name, err)
	}
	k.metrics.status(k.config.Name, answer.KeyId)
	if current := k.state.Load(); current != nil && current.keyID == answer.KeyId {
		current.until.Store(until.UnixNano())
		return nil
	}
	return k.rotate(ctx, until)
}

// rotate creates a seed, has the plugin encrypt it with its current key, and uses it for writes.
func (k *kms) rotate(ctx context.Context, until time.Time) error {
	s := &seed{seeded: seeded{make([]byte, seedSize)}}
	if _, err := rand.Read(s.seed); err != nil {
		return err
	}
	var answer *kmsapi.EncryptResponse
	err := k.call(ctx, "Encrypt", func(ctx context.Context) (err error) {
		answer, err = k.client.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: s.seed, Uid: string(uuid.NewUUID())})
		return err
	})
	if err != nil {
		return fmt.Errorf("KMS plugin %s: encrypt: %w", k.config.Name, err)
	}
	e := &envelope{keyID: answer.KeyId, source: answer.Ciphertext, annotations: answer.Annotations, kind: keySeed}
	if err := e.checkSource(); err != nil {
		return fmt.Errorf("KMS plugin %s: encrypt: %w", k.config.Name, err)
	}
	s.keyID, s.head = e.keyID, e.head(nil)
	s.until.Store(until.UnixNano())
	k.openers.Add(e.sum(), opened{opener: s.seeded})
	k.state.Store(s)
	k.log.Info("the KMS plugin has encrypted a new seed", "plugin", k.config.Name, "keyIDHash", hashOf(e.keyID))
	return nil
}

// call calls the plugin with the configured timeout and records the duration.
func (k *kms) call(ctx context.Context, method string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, k.config.timeout())
	defer cancel()
	began := k.clock.Now()
	err := do(ctx)
	k.metrics.call(k.config.Name, method, k.clock.Since(began), err)
	return err
}

func (k *kms) seal(dst, document, place []byte) ([]byte, error) {
	s := k.state.Load()
	if s == nil {
		return nil, fmt.Errorf("KMS plugin %s has not encrypted a seed yet: see /readyz/kms-providers", k.config.Name)
	}
	if until := time.Unix(0, s.until.Load()); k.clock.Now().After(until) {
		return nil, fmt.Errorf("KMS plugin %s has not been healthy for %s: the seed with keyID hash %s expired at %s",
			k.config.Name, writeTTL, hashOf(s.keyID), until.UTC().Format(time.RFC3339))
	}
	dst = protowire.AppendTag(dst, fieldData, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(sealedSize(len(document))))
	dst, err := s.append(dst, document, place)
	if err != nil {
		return nil, err
	}
	k.metrics.used(toStorage, k.config.Name, s.keyID)
	return append(dst, s.head...), nil
}

func (k *kms) open(ctx context.Context, stored, place []byte) ([]byte, bool, error) {
	e, err := parseEnvelope(stored)
	if err != nil {
		return nil, false, err
	}
	o, err := k.openerOf(ctx, e)
	if err != nil {
		return nil, false, err
	}
	document, err := o.openData(e.data, place)
	if err != nil {
		return nil, false, err
	}
	k.metrics.used(fromStorage, k.config.Name, e.keyID)
	s := k.state.Load()
	return document, s != nil && (s.keyID != e.keyID || e.kind != keySeed), nil
}

// openerOf returns the opener of an envelope. It calls the plugin if the envelope's source is not in the cache.
func (k *kms) openerOf(ctx context.Context, e *envelope) (opener, error) {
	sum := e.sum()
	if cached, ok := k.openers.Get(sum); ok {
		if o := cached.(opened); o.err == nil || k.clock.Now().Before(o.until) {
			return o.opener, o.err
		}
	}
	if down := k.down.Load(); down != nil && k.clock.Now().Before(down.until) {
		return nil, down.err
	}
	k.metrics.cacheMisses.Inc()
	o, err := k.decrypt(ctx, e)
	if err != nil {
		err = fmt.Errorf("KMS plugin %s: failed to decrypt DEK: %w", k.config.Name, err)
		until := k.clock.Now().Add(unhealthyInterval)
		switch {
		case ctx.Err() != nil: // the reader gave up: this is no outage
		case unanswered(err):
			k.down.Store(&outage{err, until})
		default:
			k.openers.Add(sum, opened{err: err, until: until})
		}
		return nil, err
	}
	k.openers.Add(sum, opened{opener: o})
	return o, nil
}

func (k *kms) decrypt(ctx context.Context, e *envelope) (opener, error) {
	var answer *kmsapi.DecryptResponse
	err := k.call(ctx, "Decrypt", func(ctx context.Context) (err error) {
		answer, err = k.client.Decrypt(ctx, &kmsapi.DecryptRequest{
			Ciphertext: e.source, Uid: string(uuid.NewUUID()), KeyId: e.keyID, Annotations: e.annotations})
		return err
	})
	if err != nil {
		return nil, err
	}
	return e.kind.opener(answer.Plaintext)
}

// unanswered reports whether a call did not reach the plugin, or the plugin did not answer in time.
func unanswered(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	}
	return false
}

// hashOf returns the hash of a key's ID, for logs and metrics.
func hashOf(id string) string {
	if id == "" {
		return ""
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(id)))
}
