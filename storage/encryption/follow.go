package encryption

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"time"
)

// pollInterval is the interval at which the file is read to detect changes. Its content is compared, because mounted
// volumes replace folders and links instead of the file.
const pollInterval = time.Second

// maxFile is the largest size of the file, in bytes.
const maxFile = 4 << 20

// readFile reads and parses the file, and returns its configuration and hash.
func (b *Backend) readFile() (*Configuration, string, error) {
	text, hash, err := b.content()
	if err != nil {
		return nil, "", err
	}
	config, err := Parse(text)
	if err != nil {
		return nil, hash, fmt.Errorf("%s: %w", b.options.File, err)
	}
	return config, hash, nil
}

// content reads the file and returns its hash. It warns if a new file is readable by others than its owner.
func (b *Backend) content() (text []byte, hash string, err error) {
	info, err := os.Stat(b.options.File)
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("read the encryption configuration: %w", err)
	case info.Size() > maxFile:
		return nil, "", fmt.Errorf("%s is larger than %d bytes", b.options.File, maxFile)
	}
	if text, err = os.ReadFile(b.options.File); err != nil {
		return nil, "", fmt.Errorf("read the encryption configuration: %w", err)
	}
	hash = fmt.Sprintf("sha256:%x", sha256.Sum256(text))
	if hash != b.hash && hash != b.refused.hash && info.Mode().Perm()&0o077 != 0 {
		b.options.Log.Warn("the encryption configuration holds keys, and others than its owner may read it",
			"file", b.options.File, "mode", info.Mode().Perm().String())
	}
	return text, hash, nil
}

// askAll checks all plugins of a table concurrently and returns the errors.
func askAll(ctx context.Context, t *table) []error {
	answers := make(chan error, len(t.kms))
	for _, k := range t.kms {
		go func() { answers <- k.check(ctx) }()
	}
	var failed []error
	for range t.kms {
		if err := <-answers; err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}

// Follow keeps the keys up to date until ctx ends. It checks whether the keys of the plugins have changed and, with
// Options.Reload, whether the file has changed. It calls readable when unreadable documents may be readable again.
func (b *Backend) Follow(ctx context.Context, readable func(context.Context)) {
	if !b.options.Reload && len(b.table.Load().kms) == 0 {
		return
	}
	ticker := b.options.Clock.NewTicker(pollInterval)
	defer ticker.Stop()
	healthy := len(askAll(ctx, b.table.Load())) == 0
	next := b.nextAsk(healthy)
	calls := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		again := b.options.Reload && b.reload(ctx)
		if again || !b.options.Clock.Now().Before(next) {
			before := healthy
			healthy = len(askAll(ctx, b.table.Load())) == 0
			next = b.nextAsk(healthy)
			again = again || healthy && !before
		}
		if again {
			calls = 2 // the second call is for documents that were being read with the old keys during the first
		}
		if calls > 0 {
			calls--
			readable(ctx)
		}
	}
}

// nextAsk returns the time of the next check of the plugins.
func (b *Backend) nextAsk(healthy bool) time.Time {
	if healthy {
		return b.options.Clock.Now().Add(healthyInterval)
	}
	return b.options.Clock.Now().Add(unhealthyInterval)
}

// refusal is a changed file that was not activated.
type refusal struct {
	hash  string
	retry time.Time // when it is tried again; zero if only a change can help
	text  string    // the error that was logged
}

// reload activates the file if it has changed, is valid, and its plugins are healthy. Otherwise the old configuration
// stays active. A file with unhealthy plugins is tried again later. reload reports whether it activated the file.
func (b *Backend) reload(ctx context.Context) bool {
	text, hash, err := b.content()
	if err != nil {
		return b.refuse(refusal{text: err.Error()})
	}
	last := b.refused
	if hash == b.hash || hash == last.hash && (last.retry.IsZero() || b.options.Clock.Now().Before(last.retry)) {
		return false
	}
	config, err := Parse(text)
	if err != nil {
		return b.refuse(refusal{hash: hash, text: err.Error()})
	}
	old := b.table.Load()
	t, err := b.newTable(config, old)
	if err != nil {
		return b.refuse(refusal{hash: hash, text: err.Error()})
	}
	if failed := askAll(ctx, t); len(failed) > 0 {
		t.closeExcept(old)
		return b.refuse(refusal{hash: hash, text: errors.Join(failed...).Error(),
			retry: b.options.Clock.Now().Add(unhealthyInterval)})
	}
	b.table.Store(t)
	// Running reads may still use the old table. Reads with the table before that one have ended long ago.
	b.previous.closeExcept(old, t)
	b.previous = old
	b.hash, b.refused = hash, refusal{}
	b.metrics.reload(hash, true)
	b.options.Log.Info("the encryption configuration has changed and is in force", "file", b.options.File, "hash", hash)
	return true
}

// refuse logs and records why a file was not activated. It returns false.
func (b *Backend) refuse(r refusal) bool {
	if b.refused.text != r.text || b.refused.hash != r.hash {
		b.options.Log.Error("cannot use the changed encryption configuration, keep the one in force",
			"file", b.options.File, "err", r.text)
	}
	if r.hash != b.refused.hash || r.hash != "" {
		b.metrics.reload("", false)
	}
	b.refused = r
	return false
}
