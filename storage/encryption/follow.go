package encryption

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"time"
)

// lookInterval is how often the file is read to see whether it has changed. It is compared by content, because what
// mounts files from elsewhere replaces folders and links.
const lookInterval = time.Second

// maxFile bounds the file.
const maxFile = 4 << 20

// readFile reads and checks the file, and returns its hash with it.
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

// askAll asks all plugins of a table for their health at the same time, and returns the errors.
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

// Follow keeps the keys up to date until ctx ends: it asks the plugins whether their keys have changed and, with
// Options.Reload, reads the file again when that has. It calls readable when documents that could not be read may be
// readable again.
func (b *Backend) Follow(ctx context.Context, readable func(context.Context)) {
	if !b.options.Reload && len(b.table.Load().kms) == 0 {
		return
	}
	look := b.options.Clock.NewTicker(lookInterval)
	defer look.Stop()
	healthy := len(askAll(ctx, b.table.Load())) == 0
	next := b.nextAsk(healthy)
	calls := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C():
		}
		again := b.options.Reload && b.reload(ctx)
		if again || !b.options.Clock.Now().Before(next) {
			was := healthy
			healthy = len(askAll(ctx, b.table.Load())) == 0
			next = b.nextAsk(healthy)
			again = again || healthy && !was
		}
		if again {
			calls = 2 // once more for what was read with the old keys and is noted only now
		}
		if calls > 0 {
			calls--
			readable(ctx)
		}
	}
}

func (b *Backend) nextAsk(healthy bool) time.Time {
	if healthy {
		return b.options.Clock.Now().Add(healthyInterval)
	}
	return b.options.Clock.Now().Add(unhealthyInterval)
}

// refusal is a changed file that was not put in force.
type refusal struct {
	hash  string
	retry time.Time // when it is tried again; zero: when it changes
	text  string    // the error that was logged
}

// reload puts the file in force if it has changed, is valid, and its plugins are healthy. Otherwise what was in force
// stays. A file whose plugins are not healthy is tried again.
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
	// Reads that have begun still use the old table; those of the one before have long ended.
	b.previous.closeExcept(old, t)
	b.previous = old
	b.hash, b.refused = hash, refusal{}
	b.metrics.reload(hash, true)
	b.options.Log.Info("the encryption configuration has changed and is in force", "file", b.options.File, "hash", hash)
	return true
}

// refuse notes why a file is not put in force.
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
