package flowcontrol

import (
	"hash/maphash"
	"math"
	"time"

	flowv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/utils/ptr"
)

// Configure replaces the whole configuration. It gets all objects, and may keep them. Requests that
// wait or are served keep their level: a removed level ends with the last of them. A schema without an
// existing level is not used.
func (d *Dispatcher) Configure(levels []*flowv1.PriorityLevelConfiguration, schemas []*flowv1.FlowSchema) {
	d.mu.Lock()
	defer d.mu.Unlock()
	uids := d.setLevels(levels)
	d.setSchemas(schemas, uids)
	d.forgetIdle()
	d.share()
	d.adjust()
}

// setLevels creates, changes and quiesces levels. It returns the UIDs of the configured ones.
func (d *Dispatcher) setLevels(objects []*flowv1.PriorityLevelConfiguration) map[string]string {
	uids := make(map[string]string, len(objects))
	take := func(o *flowv1.PriorityLevelConfiguration) {
		if _, twice := uids[o.Name]; twice || !sound(o) {
			return
		}
		uids[o.Name] = string(o.UID)
		l := d.levels[o.Name]
		if l == nil {
			l = &level{name: o.Name, exempt: o.Spec.Type == flowv1.PriorityLevelEnablementExempt}
			d.levels[o.Name] = l
		}
		l.set(o.Spec)
	}
	for _, o := range objects {
		take(o)
	}
	for _, o := range d.Levels {
		take(o) // where it is missing
	}
	for name, l := range d.levels {
		if _, configured := uids[name]; !configured {
			l.quiescing = true
		}
	}
	return uids
}

// sound reports whether the fields of the object that are used here pass validation.
func sound(o *flowv1.PriorityLevelConfiguration) bool {
	if o.Name == flowv1.PriorityLevelConfigurationNameExempt {
		return o.Spec.Type == flowv1.PriorityLevelEnablementExempt
	}
	limited := o.Spec.Limited
	if o.Spec.Type != flowv1.PriorityLevelEnablementLimited || limited == nil {
		return false
	}
	q := limited.LimitResponse.Queuing
	return (limited.LimitResponse.Type == flowv1.LimitResponseTypeQueue) == (q != nil) &&
		(q == nil || q.Queues > 0 && q.HandSize > 0 && q.HandSize <= maxHand && q.QueueLengthLimit > 0)
}

func (d *Dispatcher) setSchemas(objects []*flowv1.FlowSchema, levels map[string]string) {
	var used []*flowv1.FlowSchema
	have := map[string]bool{}
	take := func(o *flowv1.FlowSchema) {
		if _, ok := levels[o.Spec.PriorityLevelConfiguration.Name]; ok && !have[o.Name] {
			have[o.Name] = true
			used = append(used, o)
		}
	}
	for _, o := range objects {
		take(o)
	}
	for _, o := range d.Schemas {
		take(o) // where it is missing
	}
	inOrder(used)
	schemas := make([]*schema, len(used))
	for i, o := range used {
		l := d.levels[o.Spec.PriorityLevelConfiguration.Name]
		s := &schema{seed: maphash.String(seed, o.Name), name: o.Name, uid: string(o.UID), level: l,
			levelUID: levels[l.name], metrics: d.metrics.of(l.name, o.Name)}
		if !l.exempt {
			s.distinguish = distinguisher(o.Spec.DistinguisherMethod)
		}
		schemas[i] = s
	}
	d.config.Store(newConfiguration(schemas, used))
}

// forgetIdle deletes the removed levels that are idle. d.mu is held.
func (d *Dispatcher) forgetIdle() {
	ended := false
	for name, l := range d.levels {
		if l.quiescing && l.idle() {
			delete(d.levels, name)
			d.metrics.forget(name)
			ended = true
		}
	}
	if ended {
		d.share()
	}
}

// share divides the seats by the levels' shares, and computes the numbers of seats that each may lend and borrow:
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#prioritylevelconfiguration
func (d *Dispatcher) share() {
	sum := 0.0
	for _, l := range d.levels {
		sum += float64(l.shares())
	}
	now := d.now()
	for _, l := range d.levels {
		nominal := 0.0
		if sum > 0 {
			nominal = math.Ceil(float64(d.Options.Seats) * float64(l.shares()) / sum)
		}
		lendable := math.Round(nominal * float64(l.lendable()) / 100)
		fresh := l.upper == 0 // only a level that was not shared before has 0
		l.nominal, l.lower, l.upper = int(nominal), int(nominal-lendable), d.Options.Seats
		if percent := l.borrowing(); percent != nil {
			l.upper = int(nominal + math.Round(nominal*float64(*percent)/100))
		}
		l.allow(now, fresh, int(nominal-lendable/2))
	}
}

// allow bounds the width of requests. A fresh level begins with so many seats.
func (l *level) allow(now time.Duration, fresh bool, seats int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.widest = maxSeats
	if !l.exempt {
		l.widest = min(maxSeats, max(1, int(math.Ceil(float64(l.nominal)*widestShare))))
	}
	if fresh {
		l.limit = seats
		l.demand.reset(now)
	}
}

func (l *level) shares() int32 {
	if l.spec.Limited != nil {
		return ptr.Deref(l.spec.Limited.NominalConcurrencyShares, 30)
	}
	if l.spec.Exempt != nil {
		return ptr.Deref(l.spec.Exempt.NominalConcurrencyShares, 0)
	}
	return 0
}

func (l *level) lendable() int32 {
	if l.spec.Limited != nil {
		return ptr.Deref(l.spec.Limited.LendablePercent, 0)
	}
	if l.spec.Exempt != nil {
		return ptr.Deref(l.spec.Exempt.LendablePercent, 0)
	}
	return 0
}

// borrowing returns the borrowing limit in percent; nil for no limit.
func (l *level) borrowing() *int32 {
	if l.spec.Limited != nil {
		return l.spec.Limited.BorrowingLimitPercent
	}
	return nil
}
