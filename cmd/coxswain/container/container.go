// Package container finds out whether this process is the main one of a container, for texts that suggest commands: in
// a container there is no terminal and no shell, and other processes reach it by the container's runtime.
package container

import (
	"os"
	"path/filepath"
	"regexp"
)

// marks are files that runtimes put into containers, and the runtimes' commands.
var marks = []struct{ file, command string }{{".dockerenv", "docker"}, {"run/.containerenv", "podman"}}

// id matches the host name of a container that was created without one: the beginning of its ID.
var id = regexp.MustCompile(`^[0-9a-f]{12}$`)

// Container is a container that a process runs in.
type Container struct {
	Command string // of the runtime: docker or podman
	Name    string // the container's ID, or "CONTAINER" if the process cannot know it
}

// Here returns the container that this process is the main one of.
func Here() (c Container, found bool) {
	name, _ := os.Hostname() // without one the name is not known
	return find("/", os.Getpid(), name)
}

func find(root string, pid int, host string) (c Container, found bool) {
	if pid != 1 {
		return c, false
	}
	for _, mark := range marks {
		if _, err := os.Stat(filepath.Join(root, mark.file)); err != nil {
			continue
		}
		c = Container{mark.command, "CONTAINER"}
		if id.MatchString(host) {
			c.Name = host
		}
		return c, true
	}
	return c, false
}
