package process

import (
	"os/user"
	"strconv"
)

// account is what the machine's files say of a user: those of the container, which has them in place of an image's.
type account struct {
	gid    uint32
	home   string
	groups []int64 // all that it is in
}

// lookUp finds a user, as other runtimes do: one that has no entry is in the group 0 and at home in /.
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
	groups, _ := entry.GroupIds() // none where they cannot be read
	for _, text := range groups {
		if gid, err := strconv.ParseUint(text, 10, 32); err == nil {
			a.groups = append(a.groups, int64(gid))
		}
	}
	return a
}
