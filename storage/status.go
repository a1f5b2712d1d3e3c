package storage

import "fmt"

// Alarm is an alarm of etcd's: a reason why it can no longer do its work. It stays raised, over restarts
// too, until it is disarmed.
type Alarm string

const (
	// NoSpace: the database is larger than its quota. etcd takes deletions and compactions only.
	NoSpace Alarm = "NOSPACE"
	// Corrupt: a member's data differs from the others'. etcd rejects all requests.
	Corrupt Alarm = "CORRUPT"
)

// Status is the size and the health of the member of etcd that answered.
type Status struct {
	Revision int64
	Size     int64 // of the database file, in bytes
	InUse    int64 // the part of Size that defragmenting would leave
	Quota    int64 // the Size above which NoSpace is raised
	Alarms   []Alarm
	// Embedded reports that this etcd runs in this process, so that only this process can maintain it.
	Embedded bool
	// DiskFull reports that the disk of an embedded etcd has less than Reserve bytes left, which are for deletions.
	DiskFull bool
	Reserve  int64
}

// Has reports whether an alarm is raised.
func (s *Status) Has(a Alarm) bool {
	for _, raised := range s.Alarms {
		if raised == a {
			return true
		}
	}
	return false
}

// needsRoom reports that making room may help: the quota is reached, or the disk is full and the database is
// large enough to matter.
func (s *Status) needsRoom() bool {
	return s.Has(NoSpace) || s.DiskFull && s.Size > s.Reserve
}

// unhealthy returns nil while etcd can be read. An etcd at its quota can be read: if all API servers on it became
// unready, load balancers would have none left, and no client could delete objects. kube-apiserver is ready then, too.
func (s *Status) unhealthy() error {
	switch {
	case s.Has(Corrupt):
		return fmt.Errorf("%w: alarm CORRUPT is raised: its members hold different data", ErrUnavailable)
	case s.DiskFull:
		return fmt.Errorf("%w: the disk has less than %d MiB left", ErrNoSpace, s.Reserve>>20)
	}
	return nil
}
