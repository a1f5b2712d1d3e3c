// Package audit is the command audit, which shows the requests of users from an API server's audit log. It sends no
// requests. log.go reads the log and the rotated files beside it, table.go aligns the columns of a stream of rows.
package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

type options struct {
	*session.Session
	user, output, since string
	verbs               []string
	follow              bool
}

// NewCommand returns the command audit.
func NewCommand(s *session.Session) *cobra.Command {
	o := &options{Session: s}
	cmd := &cobra.Command{
		Use:   "audit (FILE | -) [TYPE NAME | TYPE/NAME | TYPE]",
		Short: "Show which user did what to an object, from an API server's audit log",
		Long: `Reads an audit log in the format json (audit.k8s.io/v1), one line per request: when, by which user, what, and how it
ended. The files that were rotated beside it are read first, whether they are compressed or not; - is standard input. No
server is asked.

A request is shown when it is complete; one whose credential was refused, when it was refused. "admin as jane" is the user
admin who acted as jane.`,
		Example: `  kubectl-lite audit /var/log/audit.log deployment/web -n shop
  kubectl-lite audit /var/log/audit.log --user jane --verb create,delete --since 2h
  kubectl-lite audit /var/log/audit.log secrets -f
  journalctl -u coxswain -o cat | kubectl-lite audit - -o wide`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			match, err := o.filter(cmd, args)
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), args[0], match)
		},
	}
	cmd.Flags().StringVar(&o.user, "user", "", "Show requests of this user only, or those made as this user.")
	cmd.Flags().StringSliceVar(&o.verbs, "verb", nil, "Show requests with these verbs only, such as create,delete.")
	cmd.Flags().StringVar(&o.since, "since", "",
		"Show requests from then on only: a duration before now such as 90m, or a time such as 2031-05-01T08:00:00Z.")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "Go on as the log grows, also when it is rotated.")
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "Output format. One of: (wide, json), json for whole events.")
	return cmd
}

// auditEvent is the part of an event of audit.k8s.io/v1 that the command uses.
type auditEvent struct {
	APIVersion       string     `json:"apiVersion"`
	Kind             string     `json:"kind"`
	AuditID          string     `json:"auditID"`
	Stage            string     `json:"stage"`
	RequestURI       string     `json:"requestURI"`
	Verb             string     `json:"verb"`
	User             auditUser  `json:"user"`
	ImpersonatedUser *auditUser `json:"impersonatedUser"`
	SourceIPs        []string   `json:"sourceIPs"`
	UserAgent        string     `json:"userAgent"`
	ObjectRef        *struct {
		Resource    string `json:"resource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		APIGroup    string `json:"apiGroup"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Reason  string `json:"reason"`
		Message string `json:"message"`
		Code    int    `json:"code"`
	} `json:"responseStatus"`
	RequestReceivedTimestamp time.Time         `json:"requestReceivedTimestamp"`
	Annotations              map[string]string `json:"annotations"`
}

type auditUser struct {
	Username string `json:"username"`
}

// auditFilter selects events. Empty fields select all.
type auditFilter struct {
	resources       []string // possible plurals of the type that the user named; nil for all
	group           string
	namespace, name string
	user            string
	verbs           []string
	since           time.Time
}

// filter returns the filter of the flags and arguments.
func (o *options) filter(cmd *cobra.Command, args []string) (*auditFilter, error) {
	if len(args) == 0 || len(args) > 3 {
		return nil, session.UsageErrorf(cmd, "the file of an audit log is required, and at most one object")
	}
	if o.output != "" && o.output != "wide" && o.output != "json" {
		return nil, session.UsageErrorf(cmd, "--output must be 'wide' or 'json'")
	}
	f := &auditFilter{namespace: *o.Flags.Namespace, user: o.user, verbs: o.verbs}
	if len(args) > 1 {
		kind, name, _ := strings.Cut(args[1], "/")
		if len(args) > 2 {
			kind, name = args[1], args[2]
		}
		if kind == "" || strings.ContainsAny(kind+name, ",/") {
			return nil, session.UsageErrorf(cmd, "%q is no object", strings.Join(args[1:], " "))
		}
		f.name = name
		f.resources, f.group = namesOfType(kind)
	}
	if o.since == "" {
		return f, nil
	}
	var err error
	if f.since, err = time.Parse(time.RFC3339, o.since); err == nil {
		return f, nil
	}
	ago, err := time.ParseDuration(o.since)
	if err != nil || ago < 0 {
		return nil, session.UsageErrorf(cmd,
			"--since must be a duration such as 90m or a time such as 2031-05-01T08:00:00Z")
	}
	f.since = time.Now().Add(-ago)
	return f, nil
}

// shortTypes are the short names of built-in types: the command has no server that it could ask.
var shortTypes = map[string]string{"cm": "configmaps", "cj": "cronjobs", "crd": "customresourcedefinitions",
	"csr": "certificatesigningrequests", "deploy": "deployments", "ds": "daemonsets", "ep": "endpoints", "ev": "events",
	"hpa": "horizontalpodautoscalers", "ing": "ingresses", "limits": "limitranges", "netpol": "networkpolicies",
	"no": "nodes", "ns": "namespaces", "pc": "priorityclasses", "pdb": "poddisruptionbudgets", "po": "pods",
	"pv": "persistentvolumes", "pvc": "persistentvolumeclaims", "quota": "resourcequotas",
	"rc": "replicationcontrollers", "rs": "replicasets", "sa": "serviceaccounts", "sc": "storageclasses",
	"sts": "statefulsets", "svc": "services"}

// namesOfType returns the resources that a short name, a kind or a plural may stand for, and the group after a ".".
func namesOfType(kind string) (resources []string, group string) {
	kind, group, _ = strings.Cut(strings.ToLower(kind), ".")
	if plural, ok := shortTypes[kind]; ok {
		return []string{plural}, group
	}
	for gvk := range scheme.Scheme.AllKnownTypes() {
		if strings.ToLower(gvk.Kind) == kind {
			plural, _ := meta.UnsafeGuessKindToResource(gvk)
			return []string{kind, plural.Resource}, group
		}
	}
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	return []string{kind, plural.Resource}, group
}

// shown reports whether an event is the last one of its request, and the filter selects it.
func (f *auditFilter) shown(e *auditEvent) bool {
	switch e.Stage {
	case "ResponseComplete", "Panic":
	case "ResponseStarted":
		if e.ResponseStatus.Code != 401 { // a request with a bad credential has no later event
			return false
		}
	default:
		return false
	}
	if len(f.verbs) > 0 && !slices.Contains(f.verbs, e.Verb) || e.RequestReceivedTimestamp.Before(f.since) {
		return false
	}
	if f.user != "" && e.User.Username != f.user &&
		(e.ImpersonatedUser == nil || e.ImpersonatedUser.Username != f.user) {
		return false
	}
	ref := e.ObjectRef
	if ref == nil {
		return f.resources == nil && f.namespace == ""
	}
	return (f.resources == nil || slices.Contains(f.resources, ref.Resource)) &&
		(f.group == "" || f.group == ref.APIGroup) && (f.name == "" || f.name == ref.Name) &&
		(f.namespace == "" || f.namespace == ref.Namespace)
}

// run prints the log, and follows it with --follow.
func (o *options) run(ctx context.Context, path string, f *auditFilter) error {
	others, table := 0, &auditTable{out: o.Out, columns: auditColumns}
	if o.output == "wide" {
		table.columns = auditColumnsWide
	}
	show := func(line []byte) error {
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil || e.Kind != "Event" {
			others++
			return nil
		}
		if !f.shown(&e) {
			return nil
		}
		if o.output == "json" {
			_, err := fmt.Fprintf(o.Verbatim.Out, "%s\n", line)
			return err
		}
		return table.add(o.row(&e))
	}
	log := &auditLog{path: path, since: f.since, line: show, idle: table.flush}
	defer log.close()
	var err error
	if path == "-" {
		err = log.read(ctx, o.Verbatim.In)
	} else {
		err = log.readAll(ctx, o.follow)
	}
	err = errors.Join(err, table.flush())
	if others += log.tooLong; others > 0 {
		fmt.Fprintf(o.ErrOut, "lines that are no audit events in JSON: %d\n", others)
	}
	return err
}

// The columns of the table.
var (
	auditColumns     = []string{"TIME", "USER", "VERB", "OBJECT", "CODE", "RESULT"}
	auditColumnsWide = []string{"TIME", "USER", "VERB", "OBJECT", "CODE", "SOURCE", "AUDIT-ID", "AGENT", "RESULT"}
)

// row returns the cells of an event.
func (o *options) row(e *auditEvent) []string {
	user := cmp.Or(e.User.Username, "<unknown>")
	if e.ImpersonatedUser != nil {
		user += " as " + e.ImpersonatedUser.Username
	}
	cells := []string{e.RequestReceivedTimestamp.UTC().Format("2006-01-02T15:04:05.000Z"), user, e.Verb, e.about(),
		fmt.Sprint(e.ResponseStatus.Code)}
	if o.output != "wide" {
		return append(cells, e.result(false))
	}
	source := ""
	if n := len(e.SourceIPs); n > 0 {
		source = e.SourceIPs[n-1] // the client may have made up the others
	}
	return append(cells, source, e.AuditID, e.UserAgent, e.result(true))
}

// about returns the object of a request, or its path.
func (e *auditEvent) about() string {
	ref := e.ObjectRef
	if ref == nil {
		return e.RequestURI
	}
	text := ref.Resource
	if ref.APIGroup != "" {
		text += "." + ref.APIGroup
	}
	for _, part := range []string{ref.Name, ref.Subresource} {
		if part != "" {
			text += "/" + part
		}
	}
	if ref.Namespace != "" && ref.Resource != "namespaces" {
		text += " in " + ref.Namespace
	}
	return text
}

// result returns the reason for which a request was allowed or failed.
func (e *auditEvent) result(wide bool) string {
	if e.ResponseStatus.Code >= 400 {
		reason := cmp.Or(e.ResponseStatus.Reason, e.ResponseStatus.Message)
		if wide && e.ResponseStatus.Message != "" {
			reason = e.ResponseStatus.Message
		}
		return reason
	}
	if wide {
		if reason := e.Annotations["authorization.k8s.io/reason"]; reason != "" {
			return reason
		}
	}
	return e.Annotations["authorization.k8s.io/decision"]
}
