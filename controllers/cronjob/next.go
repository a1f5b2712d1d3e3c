package cronjob

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"text/tabwriter"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// ServeHTTP serves a table of each CronJob's next scheduled time, which no field of a CronJob has.
func (c *cronJobs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	all, err := c.lister.List(labels.Everything())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	slices.SortFunc(all, func(a, b *batchv1.CronJob) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	table := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tNAME\tSCHEDULE\tNEXT")
	for _, cj := range all {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", cj.Namespace, cj.Name, cj.Spec.Schedule, nextRun(cj, c.clock.Now()))
	}
	_ = table.Flush() // the client may have disconnected
}

func nextRun(cj *batchv1.CronJob, now time.Time) string {
	if suspended(cj) {
		return "suspended"
	}
	times, _, err := parse(&cj.Spec)
	if err != nil {
		return err.Error()
	}
	next := times.Next(now)
	if next.IsZero() {
		return "never"
	}
	return inZone(&cj.Spec, next).Format(time.RFC3339)
}
