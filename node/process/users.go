package process

import (
	"os/user"
	"strconv"
)

// account is a user's entry in the machine's user database, which containers use instead of an image's.
type account struct {
	gid    uint32
	home   string
	groups []int64 // all groups of the user
}

// lookUp returns a user's account. As in other runtimes, a user without an entry has the group 0 and the home /.
func lookUp(uid uint32) *account {
	entry, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return &account{home: "/"}
	}
	a := &account{home: entry.HomeDir}
	if gid, err := strconv.ParseUint(entry.Gid, 10, 32); err == nil {
		a.gid = uint32(gid)
	}
	if a.home == "" {
		a.home = "/"
	}
	groups, _ := entry.GroupIds() // an error leaves the list empty
	for _, text := range groups {
		if gid, err := strconv.ParseUint(text, 10, 32); err == nil {
			a.groups = append(a.groups, int64(gid))
		}
	}
	return a
}
