// Command netexec runs in the pods of the network's tests, in place of the conformance suite's agnhost. It has a server
// that returns its host name or the client's address, and clients.
//
//	netexec serve [flags]                   HTTP: /hostname, /clientip, /stream; UDP: the same words
//	netexec get [flags] URL                 get http://HOST:PORT/PATH or udp://HOST:PORT/WORD, without keep-alive
//	netexec hold URL                        read a stream until its server or the network ends it, or stdin ends
//	netexec dig TYPE NAME                   print a name's records, with the search list of /etc/resolv.conf
//	netexec host NAME                       print a name's addresses, with the resolver of programs
//	netexec resolve FILE NAME               append the DNS server's responses to a file until the process is killed
//	netexec guestbook ROLE [flags]          a web application: leader, follower, frontend
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	commands := map[string]func(args []string) error{
		"serve": serve, "get": get, "hold": hold, "dig": dig, "host": host, "resolve": resolve,
		"guestbook": guestbook,
	}
	err := errors.New("no such command")
	if len(os.Args) > 1 && commands[os.Args[1]] != nil {
		err = commands[os.Args[1]](os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "netexec:", err)
		os.Exit(1)
	}
}
