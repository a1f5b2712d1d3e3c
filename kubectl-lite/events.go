package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/cli-runtime/pkg/resource"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

type eventsOptions struct {
	*session
	writing
	allNamespaces bool
	watch         bool
	about         string
	types         []string
	noHeaders     bool
}

func newEvents(s *session) *cobra.Command {
	o := &eventsOptions{session: s}
	cmd := &cobra.Command{
		Use: "events [(-o|--output=)json|yaml|...] [--for TYPE/NAME] [--watch] [--types=Normal,Warning]", Short: "List events",
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, t := range o.types {
				if !strings.EqualFold(t, "Normal") && !strings.EqualFold(t, "Warning") {
					return errors.New("valid --types are Normal or Warning")
				}
			}
			return o.run(contextOf(cmd))
		},
	}
	o.addPrintFlags(cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&o.watch, "watch", "w", false, "After listing the requested events, watch for more events.")
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If present, list the requested object(s) across all namespaces. Namespace in current context is ignored even if specified with --namespace.")
	flags.StringVar(&o.about, "for", "", "Filter events to only those pertaining to the specified resource.")
	flags.StringSliceVar(&o.types, "types", nil, "Output only events of given types.")
	flags.BoolVar(&o.noHeaders, "no-headers", false, "When using the default output format, don't print headers.")
	return cmd
}

func (o *eventsOptions) run(ctx context.Context) error {
	namespace, _, err := o.namespace()
	if err != nil {
		return err
	}
	options := metav1.ListOptions{Limit: cmdutil.DefaultChunkSize}
	if options.FieldSelector, err = o.fieldSelector(); err != nil {
		return err
	}
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	in := namespace
	if o.allNamespaces {
		in = ""
	}
	w := printers.GetNewTabWriter(o.Out)
	if o.watch {
		options.Limit = 0
		changes, err := client.CoreV1().Events(in).Watch(ctx, options)
		if err != nil {
			return err
		}
		defer changes.Stop()
		return o.follow(ctx, changes, w)
	}
	list := &corev1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}}
	err = resource.FollowContinue(&options, func(options metav1.ListOptions) (runtime.Object, error) {
		page, err := client.CoreV1().Events(in).List(ctx, options)
		if err == nil {
			list.Items = append(list.Items, page.Items...)
		}
		return page, err
	})
	if err != nil {
		return err
	}
	list.Items = slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return !o.wants(e.Type) })
	if len(list.Items) == 0 {
		if o.allNamespaces {
			fmt.Fprintln(o.ErrOut, "No events found.")
		} else {
			fmt.Fprintf(o.ErrOut, "No events found in %s namespace.\n", namespace)
		}
		return nil
	}
	slices.SortFunc(list.Items, func(a, b corev1.Event) int { return eventTime(a).Compare(eventTime(b)) })
	if *o.print.OutputFormat != "" {
		return o.show(o.session, list, "")
	}
	o.header(w)
	for _, e := range list.Items {
		o.row(w, e)
	}
	return w.Flush()
}

// fieldSelector is --for: the events whose involved object is the one named.
func (o *eventsOptions) fieldSelector() (string, error) {
	if o.about == "" {
		return "", nil
	}
	kind, name, ok := strings.Cut(o.about, "/")
	if !ok || kind == "" || name == "" {
		return "", errors.New("--for must be in resource/name form")
	}
	mapping, err := o.mappingFor(kind)
	if err != nil {
		return "", err
	}
	gvk := mapping.GroupVersionKind
	return fields.AndSelectors(
		fields.OneTermEqualSelector("involvedObject.kind", gvk.Kind),
		fields.OneTermEqualSelector("involvedObject.apiVersion", gvk.GroupVersion().String()),
		fields.OneTermEqualSelector("involvedObject.name", name)).String(), nil
}

func (o *eventsOptions) wants(kind string) bool {
	return len(o.types) == 0 || slices.ContainsFunc(o.types, func(t string) bool { return strings.EqualFold(t, kind) })
}

func (o *eventsOptions) follow(ctx context.Context, changes watch.Interface, w flushWriter) error {
	first := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case change, open := <-changes.ResultChan():
			if !open {
				return nil
			}
			if change.Type == watch.Error {
				return apierrors.FromObject(change.Object)
			}
			e, ok := change.Object.(*corev1.Event)
			if !ok || change.Type == watch.Deleted || !o.wants(e.Type) {
				continue // that an old event expired is no news
			}
			if *o.print.OutputFormat != "" {
				if err := o.show(o.session, e, ""); err != nil {
					return err
				}
				continue
			}
			if first {
				o.header(w)
				first = false
			}
			o.row(w, *e)
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
}

func (o *eventsOptions) header(w io.Writer) {
	if o.noHeaders {
		return
	}
	if o.allNamespaces {
		fmt.Fprint(w, "NAMESPACE\t")
	}
	fmt.Fprintln(w, "LAST SEEN\tTYPE\tREASON\tOBJECT\tMESSAGE")
}

func (o *eventsOptions) row(w io.Writer, e corev1.Event) {
	if o.allNamespaces {
		fmt.Fprintf(w, "%s\t", e.Namespace)
	}
	clean := cellText
	fmt.Fprintf(w, "%s\t%s\t%s\t%s/%s\t%s\n", lastSeen(e), clean(e.Type), clean(e.Reason),
		clean(e.InvolvedObject.Kind), clean(e.InvolvedObject.Name), clean(strings.TrimSpace(e.Message)))
}

// eventTime is when an event was seen last. Who writes events sets different fields, by API generation.
func eventTime(e corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.FirstTimestamp.IsZero():
		return e.FirstTimestamp.Time
	}
	return e.EventTime.Time
}

// lastSeen is "3m" or, of an event that came again and again, "3m (x12 over 1h)".
func lastSeen(e corev1.Event) string {
	first := e.FirstTimestamp.Time
	if !e.EventTime.IsZero() {
		first = e.EventTime.Time
	}
	switch {
	case e.Series != nil:
		return fmt.Sprintf("%s (x%d over %s)", since(e.Series.LastObservedTime.Time), e.Series.Count, since(first))
	case e.Count > 1:
		return fmt.Sprintf("%s (x%d over %s)", since(e.LastTimestamp.Time), e.Count, since(first))
	}
	return since(first)
}

func since(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t))
}
