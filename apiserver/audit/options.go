package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The modes of a backend. In the mode batch requests do not wait for their events to be recorded; in the others they
// do, and are rejected in the mode blocking-strict if their first event cannot be recorded.
const (
	ModeBatch          = "batch"
	ModeBlocking       = "blocking"
	ModeBlockingStrict = "blocking-strict"
)

// The formats of the log.
const (
	FormatJSON   = "json"
	FormatLegacy = "legacy"
)

var (
	modes   = []string{ModeBatch, ModeBlocking, ModeBlockingStrict}
	formats = []string{FormatLegacy, FormatJSON}
)

// Options are kube-apiserver's flags about auditing.
type Options struct {
	PolicyFile string
	Log        LogOptions
	Webhook    WebhookOptions
}

// LogOptions are those of a log on disk.
type LogOptions struct {
	// Path is the file, "-" for standard output, "" for no log.
	Path string
	// MaxAge is in days and MaxSize in MiB. 0 keeps old files whatever their age (MaxAge) or number (MaxBackups), and
	// is 100 MiB as a size.
	MaxAge, MaxBackups, MaxSize int
	// Compress compresses old files.
	Compress bool
	Format   string
	Version  string
	Batch    BatchOptions
	Truncate TruncateOptions
}

// WebhookOptions are those of a server that receives events.
type WebhookOptions struct {
	// ConfigFile is a kubeconfig; "" for no webhook.
	ConfigFile string
	// InitialBackoff is the pause after the first failure of a batch.
	InitialBackoff time.Duration
	Version        string
	Batch          BatchOptions
	Truncate       TruncateOptions
}

// BatchOptions are when events are recorded. All but Mode are for the mode batch.
type BatchOptions struct {
	Mode string
	// BufferSize is how many events may wait. MaxSize is how many are recorded together, and MaxWait how long the first
	// of them waits for the others.
	BufferSize, MaxSize int
	MaxWait             time.Duration
	// ThrottleQPS is how many batches are recorded in a second, and ThrottleBurst how many at once after a rest.
	ThrottleEnable bool
	ThrottleQPS    float64
	ThrottleBurst  int
}

// TruncateOptions bound events, in bytes. A batch is bounded whether Enabled is set or not.
type TruncateOptions struct {
	Enabled                    bool
	MaxBatchSize, MaxEventSize int64
}

// Defaults are kube-apiserver's, except that events that wait for the log are written together.
func Defaults() Options {
	truncate := TruncateOptions{MaxBatchSize: 10 << 20, MaxEventSize: 100 << 10}
	return Options{
		Log: LogOptions{Format: FormatJSON, Version: apiVersion, Truncate: truncate,
			Batch: BatchOptions{Mode: ModeBlocking, BufferSize: 10000, MaxSize: 400, MaxWait: 100 * time.Millisecond}},
		Webhook: WebhookOptions{InitialBackoff: 10 * time.Second, Version: apiVersion, Truncate: truncate,
			Batch: BatchOptions{Mode: ModeBatch, BufferSize: 10000, MaxSize: 400, MaxWait: 30 * time.Second,
				ThrottleEnable: true, ThrottleQPS: 10, ThrottleBurst: 15}},
	}
}

// Check reports what is wrong with the options of what is used.
func (o *Options) Check() error {
	var errs []error
	if o.Log.Path != "" {
		errs = append(errs, o.Log.check())
	}
	if o.Webhook.ConfigFile != "" {
		errs = append(errs, o.Webhook.check())
	}
	return errors.Join(errs...)
}

func (o *LogOptions) check() error {
	errs := []error{checkBackend("log", o.Version, &o.Batch, &o.Truncate)}
	if !slices.Contains(formats, o.Format) {
		errs = append(errs, fmt.Errorf("--audit-log-format: %q is not one of: %s", o.Format,
			strings.Join(formats, ", ")))
	}
	for name, value := range map[string]int{"maxage": o.MaxAge, "maxbackup": o.MaxBackups, "maxsize": o.MaxSize} {
		if value < 0 {
			errs = append(errs, fmt.Errorf("--audit-log-%s: %d is negative", name, value))
		}
	}
	return errors.Join(errs...)
}

func (o *WebhookOptions) check() error {
	err := checkBackend("webhook", o.Version, &o.Batch, &o.Truncate)
	if o.InitialBackoff <= 0 {
		err = errors.Join(err, fmt.Errorf("--audit-webhook-initial-backoff: %v is not positive", o.InitialBackoff))
	}
	return err
}

func checkBackend(name, version string, b *BatchOptions, t *TruncateOptions) error {
	var errs []error
	wrong := func(flag string, value any, reason string) {
		errs = append(errs, fmt.Errorf("--audit-%s-%s: %v %s", name, flag, value, reason))
	}
	if version != apiVersion {
		wrong("version", version, "is not "+apiVersion)
	}
	if !slices.Contains(modes, b.Mode) {
		wrong("mode", b.Mode, "is not one of: "+strings.Join(modes, ", "))
	}
	const positive = "is not positive"
	if b.Mode == ModeBatch {
		if b.BufferSize <= 0 {
			wrong("batch-buffer-size", b.BufferSize, positive)
		}
		if b.MaxSize <= 0 {
			wrong("batch-max-size", b.MaxSize, positive)
		}
		if b.ThrottleEnable && b.ThrottleQPS <= 0 {
			wrong("batch-throttle-qps", b.ThrottleQPS, positive)
		}
		if b.ThrottleEnable && b.ThrottleBurst <= 0 {
			wrong("batch-throttle-burst", b.ThrottleBurst, positive)
		}
	}
	if t.MaxEventSize <= 0 {
		wrong("truncate-max-event-size", t.MaxEventSize, positive)
	}
	if t.MaxBatchSize < t.MaxEventSize {
		wrong("truncate-max-batch-size", t.MaxBatchSize, "is less than the size of an event")
	}
	return errors.Join(errs...)
}
