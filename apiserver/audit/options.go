package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The modes of a backend. In ModeBatch requests do not wait until their events are recorded; in the other modes
// they do. ModeBlockingStrict also rejects a request if its first event cannot be recorded.
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

// Options holds the values of kube-apiserver's audit flags.
type Options struct {
	PolicyFile string
	Log        LogOptions
	Webhook    WebhookOptions
}

// LogOptions configures the log on disk.
type LogOptions struct {
	// Path is the file; "-" is standard output and "" disables the log.
	Path string
	// MaxAge is in days and MaxSize in MiB. A MaxAge or MaxBackups of 0 is no limit; a MaxSize of 0 is 100 MiB.
	MaxAge, MaxBackups, MaxSize int
	// Compress compresses old files.
	Compress bool
	Format   string
	Version  string
	Batch    BatchOptions
	Truncate TruncateOptions
}

// WebhookOptions configures a server that receives events.
type WebhookOptions struct {
	// ConfigFile is a kubeconfig; "" disables the webhook.
	ConfigFile string
	// InitialBackoff is the pause after the first failure of a batch.
	InitialBackoff time.Duration
	Version        string
	Batch          BatchOptions
	Truncate       TruncateOptions
}

// BatchOptions determines when events are recorded. All fields except Mode apply to ModeBatch only.
type BatchOptions struct {
	Mode string
	// BufferSize limits the waiting events and MaxSize the events in a batch. MaxWait limits how long the first
	// event of a batch waits for the others.
	BufferSize, MaxSize int
	MaxWait             time.Duration
	// ThrottleQPS limits the batches per second, and ThrottleBurst the batches in a burst.
	ThrottleEnable bool
	ThrottleQPS    float64
	ThrottleBurst  int
}

// TruncateOptions limits the size of events, in bytes. MaxBatchSize applies even if Enabled is false.
type TruncateOptions struct {
	Enabled                    bool
	MaxBatchSize, MaxEventSize int64
}

// Defaults returns kube-apiserver's defaults, except that in the batch mode events for the log are written
// together.
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

// Check validates the options of the outputs in use.
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
