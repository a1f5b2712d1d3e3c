package audit

import (
	"strings"

	"github.com/spf13/pflag"
)

// AddFlags adds kube-apiserver's flags and sets the options to Defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	*o = Defaults()
	fs.StringVar(&o.PolicyFile, "audit-policy-file", "",
		"audit policy: the requests to record, and their recorded parts; a change has effect within a second")
	l := &o.Log
	fs.StringVar(&l.Path, "audit-log-path", "", "file that audit events are written to; - is standard output")
	fs.IntVar(&l.MaxAge, "audit-log-maxage", 0, "how many days old audit logs are kept; 0 for any age")
	fs.IntVar(&l.MaxBackups, "audit-log-maxbackup", 0, "how many old audit logs are kept; 0 for any number")
	fs.IntVar(&l.MaxSize, "audit-log-maxsize", 0, "rotate the audit log at this many MiB; 0 is 100")
	fs.BoolVar(&l.Compress, "audit-log-compress", false, "compress old audit logs by gzip")
	fs.StringVar(&l.Format, "audit-log-format", l.Format,
		"form of an event in the audit log, a line of JSON or of text: "+strings.Join(formats, ", "))
	w := &o.Webhook
	fs.StringVar(&w.ConfigFile, "audit-webhook-config-file", "",
		"kubeconfig of a server that audit events are sent to; a change has effect within a second")
	fs.DurationVar(&w.InitialBackoff, "audit-webhook-initial-backoff", w.InitialBackoff,
		"pause before events are sent again to the audit webhook after a failure; later pauses are longer")
	fs.DurationVar(&w.InitialBackoff, "audit-webhook-batch-initial-backoff", w.InitialBackoff,
		"the same as --audit-webhook-initial-backoff")
	addBackendFlags(fs, "log", &l.Version, &l.Batch, &l.Truncate)
	addBackendFlags(fs, "webhook", &w.Version, &w.Batch, &w.Truncate)
}

func addBackendFlags(fs *pflag.FlagSet, name string, version *string, b *BatchOptions, t *TruncateOptions) {
	prefix, batch := "audit-"+name+"-", "audit-"+name+"-batch-"
	fs.StringVar(version, prefix+"version", *version, "API version of the events; there is no other")
	fs.StringVar(&b.Mode, prefix+"mode", b.Mode, "batch: requests do not wait for their events to be recorded; "+
		"blocking: they wait; blocking-strict: they are rejected if their first event cannot be recorded")
	fs.IntVar(&b.BufferSize, batch+"buffer-size", b.BufferSize, "how many events may wait in the mode batch; those "+
		"beyond, or beyond 64 MiB, are lost")
	fs.IntVar(&b.MaxSize, batch+"max-size", b.MaxSize, "how many events a batch has at most")
	fs.DurationVar(&b.MaxWait, batch+"max-wait", b.MaxWait, "how long a batch that is not full waits for more events")
	fs.BoolVar(&b.ThrottleEnable, batch+"throttle-enable", b.ThrottleEnable, "limit how many batches are recorded")
	fs.Float64Var(&b.ThrottleQPS, batch+"throttle-qps", b.ThrottleQPS, "batches a second, if that is limited")
	fs.IntVar(&b.ThrottleBurst, batch+"throttle-burst", b.ThrottleBurst,
		"batches at once after a rest, if that is limited")
	fs.BoolVar(&t.Enabled, prefix+"truncate-enabled", t.Enabled, "bound the size of events: a larger one is recorded "+
		"without its bodies, or not at all if that is not enough")
	fs.Int64Var(&t.MaxBatchSize, prefix+"truncate-max-batch-size", t.MaxBatchSize, "bytes of a batch at most")
	fs.Int64Var(&t.MaxEventSize, prefix+"truncate-max-event-size", t.MaxEventSize,
		"bytes of an event at most, if that is bounded")
}
