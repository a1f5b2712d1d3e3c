package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/util/jsonpath"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

type waitOptions struct {
	*session.Session
	writing
	files         resource.FilenameOptions
	selector      string
	fieldSelector string
	all           bool
	allNamespaces bool
	until         []string
	timeout       time.Duration
}

func newWait(s *session.Session) *cobra.Command {
	o := &waitOptions{Session: s, files: resource.FilenameOptions{Recursive: true}}
	cmd := &cobra.Command{
		Use: "wait ([-f FILENAME] | resource.group/resource.name | resource.group [(-l label | --all)]) " +
			"[--for=create|--for=delete|--for condition=available|--for=jsonpath='{}'[=value]]",
		Short: "Wait for a specific condition on one or many resources",
		Example: `  kubectl-lite wait --for=condition=Available deploy/web --timeout=60s
  kubectl-lite wait --for=jsonpath='{.status.phase}'=Running pod/web-0
  kubectl-lite wait --for=delete pod -l app=web`,
		DisableFlagsInUseLine: true,
		RunE:                  func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.addPrintFlags(cmd)
	flags := cmd.Flags()
	flags.StringArrayVar(&o.until, "for", nil, "The condition to wait on: "+
		"[create|delete|condition=condition-name[=condition-value]|jsonpath='{JSONPath expression}'=[JSONPath "+
		"value]]. The default condition-value is true. Condition values are compared after Unicode simple case "+
		"folding, which is a more general form of case-insensitivity. Multiple conditions are supported and AND'ed "+
		"to each other in a sequential order. If --for=create is passed, it is always waited first.")
	flags.DurationVar(&o.timeout, "timeout", 30*time.Second, "The length of time to wait before giving up.  Zero "+
		"means check once and don't wait, negative means wait for a week.")
	flags.BoolVar(&o.all, "all", false, "Select all resources in the namespace of the specified resource types")
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If present, list the requested object(s) "+
		"across all namespaces. Namespace in current context is ignored even if specified with --namespace.")
	flags.StringVar(&o.fieldSelector, "field-selector", "",
		"Selector (field query) to filter on, supports '=', '==', and '!='.")
	cmdutil.AddFilenameOptionFlags(cmd, &o.files, "identifying the resource.")
	cmdutil.AddLabelSelectorFlagVar(cmd, &o.selector)
	return cmd
}

// expectation reports whether an object meets a condition. It is called with nil while the object does not exist.
type expectation func(*unstructured.Unstructured) (bool, error)

func (o *waitOptions) run(ctx context.Context, args []string) error {
	if len(o.until) == 0 {
		return errors.New("unrecognized condition: []")
	}
	var all []expectation
	creating, deleting := false, false
	for _, text := range o.until {
		expect, err := parseExpectation(text)
		if err != nil {
			return err
		}
		all = append(all, expect)
		creating = creating || strings.EqualFold(text, "create")
		deleting = deleting || strings.EqualFold(text, "delete")
	}
	if o.timeout < 0 {
		o.timeout = 168 * time.Hour
	}
	deadline := time.Now().Add(o.timeout)
	if creating && o.timeout > 0 {
		if err := o.untilFound(ctx, args, deadline); err != nil {
			return err
		}
	}
	infos, err := o.find(args, deleting)
	if len(infos) == 0 {
		if err != nil || deleting {
			return err
		}
		return errors.New("no matching resources found")
	}
	var errs []error // one for each object, even with equal texts
	for _, info := range infos {
		errs = append(errs, o.awaitAll(ctx, info, all, deadline))
	}
	errs = append(errs, err) // some objects were not found; the others were waited for
	if all := utilerrors.NewAggregate(errs); all != nil {
		return utilerrors.Flatten(all)
	}
	return nil
}

func (o *waitOptions) find(args []string, mayBeGone bool) ([]*resource.Info, error) {
	namespace, explicit, err := o.Namespace()
	if err != nil {
		return nil, err
	}
	found := o.WithFiles(o.NewBuilder().Unstructured().ContinueOnError().
		NamespaceParam(namespace).DefaultNamespace().AllNamespaces(o.allNamespaces), explicit, &o.files).
		LabelSelectorParam(o.selector).FieldSelectorParam(o.fieldSelector).
		ResourceTypeOrNameArgs(o.all, args...).Latest().Flatten().Do()
	if mayBeGone {
		found = found.IgnoreErrors(apierrors.IsNotFound)
	}
	if err := found.Err(); err != nil {
		return nil, err
	}
	return found.Infos()
}

// untilFound polls until all named objects exist. It cannot watch: the builder yields the kind and namespace of an
// object only together with the object.
func (o *waitOptions) untilFound(ctx context.Context, args []string, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return timedOut(wait.PollUntilContextCancel(ctx, 250*time.Millisecond, true, func(context.Context) (bool, error) {
		found, err := o.find(args, false)
		return err == nil && len(found) > 0, utilerrors.FilterOut(err, apierrors.IsNotFound)
	}))
}

// awaitAll waits for one condition after the other.
func (o *waitOptions) awaitAll(ctx context.Context, info *resource.Info, all []expectation, deadline time.Time) error {
	for _, expect := range all {
		if err := o.await(ctx, info, expect, deadline); err != nil {
			return err
		}
	}
	return nil
}

func (o *waitOptions) await(ctx context.Context, info *resource.Info, expect expectation, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	client, err := objectClient(o.Session, info)
	if err != nil {
		return err
	}
	uid := uidOf(info.Object)
	latest := info.Object
	met := func(obj *unstructured.Unstructured) (bool, error) {
		if obj != nil && uid != "" && obj.GetUID() != uid {
			obj = nil // another object has taken the name
		}
		if obj != nil {
			latest = obj
		}
		return expect(obj)
	}
	if obj, ok := info.Object.(*unstructured.Unstructured); ok {
		if done, err := met(obj); done || err != nil {
			return errors.Join(err, o.showMet(info, done))
		}
	}
	if o.timeout == 0 {
		return fmt.Errorf("condition not met for %s", info.ObjectName())
	}
	if err := observe(ctx, client, info.Name, met); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%w on %s/%s", errTimedOut, info.Mapping.Resource.Resource, info.Name)
		}
		return err
	}
	info.Object = latest
	return o.showMet(info, true)
}

// uidOf returns the UID of an object, or "" if it is not there yet.
func uidOf(obj runtime.Object) types.UID {
	if accessor, err := meta.Accessor(obj); err == nil {
		return accessor.GetUID()
	}
	return ""
}

func (o *waitOptions) showMet(info *resource.Info, met bool) error {
	if !met {
		return nil
	}
	return o.show(o.Session, info.Object, "condition met")
}

// parseExpectation reads a value of --for.
func parseExpectation(text string) (expectation, error) {
	lower := strings.ToLower(text)
	switch {
	case lower == "delete":
		return func(obj *unstructured.Unstructured) (bool, error) { return obj == nil, nil }, nil
	case lower == "create":
		return func(obj *unstructured.Unstructured) (bool, error) { return obj != nil, nil }, nil
	case strings.HasPrefix(text, "condition="):
		name, value, found := strings.Cut(text[len("condition="):], "=")
		if !found {
			value = "true"
		}
		return orGone(conditionIs(name, value)), nil
	case strings.HasPrefix(text, "jsonpath="):
		expect, err := jsonPathIs(text[len("jsonpath="):])
		return orGone(expect), err
	}
	return nil, fmt.Errorf("unrecognized condition: %q", text)
}

// orGone makes an expectation that returns an error if the object is deleted.
func orGone(expect expectation) expectation {
	return func(obj *unstructured.Unstructured) (bool, error) {
		if obj == nil {
			return false, errors.New("the object has been deleted")
		}
		return expect(obj)
	}
}

// conditionIs compares a condition of the status. A condition that was observed before the latest change of the spec
// does not count.
func conditionIs(name, value string) expectation {
	return func(obj *unstructured.Unstructured) (bool, error) {
		conditions, _, err := unstructured.NestedSlice(obj.Object, "status", "conditions")
		if err != nil {
			return false, err
		}
		for _, item := range conditions {
			condition, _ := item.(map[string]any)
			kind, _ := condition["type"].(string)
			if !strings.EqualFold(kind, name) {
				continue
			}
			status, _ := condition["status"].(string)
			observed, has := condition["observedGeneration"].(int64)
			if !has {
				observed, has, _ = unstructured.NestedInt64(obj.Object, "status", "observedGeneration")
			}
			if has && observed < obj.GetGeneration() {
				return false, nil
			}
			return strings.EqualFold(status, value), nil
		}
		return false, nil
	}
}

// splitOnce splits a text at its only single "=". In filters "==" compares.
func splitOnce(text string) (path, value string, compare bool, err error) {
	const stand = "\x00" // no path contains it
	path, value, compare = strings.Cut(strings.ReplaceAll(text, "==", stand), "=")
	if strings.Contains(value, "=") {
		return "", "", false, errors.New("jsonpath wait format must be --for=jsonpath='{.status.readyReplicas}'=3 or " +
			"--for=jsonpath='{.status.readyReplicas}'")
	}
	return strings.ReplaceAll(path, stand, "=="), strings.ReplaceAll(value, stand, "=="), compare, nil
}

// jsonPathIs reads "{.path}=value" or "{.path}", which waits for any value.
func jsonPathIs(text string) (expectation, error) {
	path, value, compare, err := splitOnce(text)
	if err != nil {
		return nil, err
	}
	relaxed, err := relaxedJSONPath(path)
	if err != nil {
		return nil, err
	}
	value = strings.Trim(value, `'"`)
	if compare && value == "" {
		return nil, errors.New(
			"jsonpath wait has to have a value after equal sign, like --for=jsonpath='{.status.readyReplicas}'=3")
	}
	if relaxed == "" {
		return nil, errors.New("jsonpath expression cannot be empty")
	}
	parser := jsonpath.New("wait").AllowMissingKeys(true)
	if err := parser.Parse(relaxed); err != nil {
		return nil, err
	}
	return func(obj *unstructured.Unstructured) (bool, error) {
		found, err := parser.FindResults(obj.Object)
		if err != nil || len(found) == 0 || len(found[0]) == 0 {
			return false, err
		}
		switch {
		case len(found) > 1:
			return false, errors.New("given jsonpath expression matches more than one list")
		case len(found[0]) > 1:
			return false, errors.New("given jsonpath expression matches more than one value")
		case !compare:
			return true, nil
		}
		switch got := found[0][0].Interface().(type) {
		case map[string]any, []any:
			return false, errors.New("jsonpath leads to a nested object or list which is not supported")
		default:
			return strings.TrimSpace(fmt.Sprint(got)) == strings.TrimSpace(value), nil
		}
	}, nil
}
