package ownprocess

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// PortHolder names the process that listens on the port of an address, as a suffix of an error: ` (process 17:
// "nginx")`. It returns "" if it cannot find the process, which may be another user's or in another PID namespace.
func PortHolder(address string) string {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return ""
	}
	sockets := listeners(port)
	if len(sockets) == 0 {
		return ""
	}
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return ""
	}
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && sockets[target] {
			pid := strings.Split(file, "/")[2]
			name, err := os.ReadFile("/proc/" + pid + "/comm")
			if err != nil {
				return ""
			}
			return fmt.Sprintf(" (process %s: %q)", pid, strings.TrimSpace(string(name)))
		}
	}
	return ""
}

// listeners returns the sockets that listen on a port, in the form of links in /proc/PID/fd.
func listeners(port uint64) map[string]bool {
	const listening = "0A"
	sockets := map[string]bool{}
	// The tables of the calling thread: other threads, even the main one, may be in a router's network namespace.
	for _, table := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		content, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(content)) {
			// 0: 0100007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 …
			fields := strings.Fields(line)
			if len(fields) > 9 && fields[3] == listening && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				sockets["socket:["+fields[9]+"]"] = true
			}
		}
	}
	return sockets
}
