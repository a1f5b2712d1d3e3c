package flowcontrol

import (
	"testing"
	"time"

	flowv1 "k8s.io/api/flowcontrol/v1"
)

func benchmark(b *testing.B, seats int) *Dispatcher {
	q := &flowv1.QueuingConfiguration{Queues: 128, HandSize: 6, QueueLengthLimit: 50}
	levels, fixed := mandatory(b)
	d := New(Options{Seats: seats, QueueWait: time.Minute, Levels: levels, Schemas: fixed})
	low := limited("low", 245, 0, q)
	low.Spec.Limited.BorrowingLimitPercent = new(int32)
	schemas := []*flowv1.FlowSchema{allOf(b, "low")}
	const leases = `, rules: [{subjects: [{kind: Group, group: {name: "system:authenticated"}}], resourceRules: [{verbs: [get, update], apiGroups: [coordination.k8s.io], resources: [leases], namespaces: ["*"]}]}]}}`
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} { // before the one that matches
		schemas = append(schemas,
			parse(b, `{metadata: {name: `+name+
				`}, spec: {matchingPrecedence: 50, priorityLevelConfiguration: {name: low}`+leases))
	}
	d.Configure([]*flowv1.PriorityLevelConfiguration{low}, schemas)
	return d
}

var someone = Request{User: "system:serviceaccount:default:someone",
	Groups: []string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"},
	Verb:   "get", Version: "v1", Resource: "pods", Namespace: "default", Name: "p"}

// A request that does not wait: classified, seated and counted.
func BenchmarkUncontended(b *testing.B) {
	d := benchmark(b, 600)
	b.ReportAllocs()
	r := new(Request)
	for b.Loop() {
		*r = someone
		d.Classify(r)
		if err := d.Start(b.Context(), r); err != nil {
			b.Fatal(err)
		}
		d.Finish(r)
	}
}

func BenchmarkClassify(b *testing.B) {
	d := benchmark(b, 600)
	b.ReportAllocs()
	r := new(Request)
	for b.Loop() {
		*r = someone
		d.Classify(r)
	}
}

func BenchmarkUncontendedParallel(b *testing.B) {
	d := benchmark(b, 600)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := new(Request)
		for pb.Next() {
			*r = someone
			d.Classify(r)
			if err := d.Start(b.Context(), r); err != nil {
				b.Error(err)
				return
			}
			d.Finish(r)
		}
	})
}

// A hundred clients for four seats: nearly every request waits in a queue.
func BenchmarkQueuing(b *testing.B) {
	d := benchmark(b, 4)
	b.ReportAllocs()
	b.SetParallelism(50) // times two cores
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r := new(Request)
			*r = someone
			d.Classify(r)
			if err := d.Start(b.Context(), r); err != nil {
				b.Error(err)
				return
			}
			d.Finish(r)
		}
	})
}
