package kubectllite

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/kubectl-lite/history"
)

// validateAt checks --at and the flags that exclude it.
func (o *getOptions) validateAt() error {
	switch {
	case o.at == "":
		return nil
	case o.watch || o.watchOnly:
		return errors.New("--at shows the past: it can not be watched")
	case o.subresource != "" || len(o.files.Filenames) > 0 || o.files.Kustomize != "":
		return errors.New("--at takes kinds or one object, no files and no subresource")
	}
	_, err := o.whenAt(time.Now())
	return err
}

// whenAt parses --at: a time, or a duration before now.
func (o *getOptions) whenAt(now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(o.at); err == nil && ago > 0 {
		return now.Add(-ago), nil
	}
	when, err := time.Parse(time.RFC3339, o.at)
	if err != nil || when.After(now) {
		return time.Time{}, fmt.Errorf("--at: %q is neither a duration such as 90s or 5m nor a time in the past "+
			"such as %s", o.at, now.Add(-time.Hour).Format(time.RFC3339))
	}
	return when, nil
}

// runAt runs get --at: it lists at the revision that was the newest one at that time. To get one object it lists with a
// selector of its name, because the API has exact revisions only for lists.
func (o *getOptions) runAt(cmd *cobra.Command, args []string) error {
	ctx := cmd.Context()
	when, err := o.whenAt(time.Now())
	if err != nil {
		return err
	}
	past, err := history.Open(ctx, o.Session)
	if err != nil {
		return err
	}
	then, err := past.At(ctx, when)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.ErrOut, "As of %s:\n", then)
	o.revision = strconv.FormatInt(then.Revision, 10)
	if len(args) == 1 && !strings.Contains(args[0], "/") {
		return o.run(args)
	}
	mapping, name, err := o.OneName(cmd, args)
	if err != nil {
		return err
	}
	return o.runOneAt(mapping, name)
}

// runOneAt prints one object as of the revision of --at.
func (o *getOptions) runOneAt(mapping *meta.RESTMapping, name string) error {
	if o.fieldSelector != "" || o.selector != "" {
		return errors.New("selectors may not be used with a name")
	}
	o.fieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	namespace, explicit, err := o.Namespace()
	if err != nil {
		return err
	}
	kind := mapping.GroupVersionKind
	found := o.query(namespace, explicit,
		[]string{strings.Join([]string{kind.Kind, kind.Version, kind.Group}, ".")}).Flatten().Do()
	infos, err := found.Infos()
	if err != nil {
		return err
	}
	var table *metav1.Table
	if len(infos) > 0 {
		if table, err = decodeTable(infos[0].Object); err != nil {
			return err
		}
	}
	switch {
	case len(infos) == 0 || table != nil && len(table.Rows) == 0:
		if o.ignoreNotFound {
			return nil
		}
		return apierrors.NewNotFound(mapping.Resource.GroupResource(), name)
	case o.format.human():
		return o.printTables(namespace, found)
	}
	printer, err := o.format.objects()
	if err != nil {
		return err
	}
	return printer.PrintObj(infos[0].Object, o.OutFor(o.format.print))
}

// askForRevision makes a list request for the revision of --at.
func (o *getOptions) askForRevision(req *rest.Request) {
	if o.revision != "" {
		req.Param("resourceVersion", o.revision)
		req.Param("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
	}
}
