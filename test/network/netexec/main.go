// Command netexec is the program that runs in the pods of the tests of the cluster's network: a server that says who it
// is and who asks, and clients. It does what the conformance suite's agnhost does there.
//
//	netexec serve [flags]                   HTTP: /hostname, /clientip, /stream; UDP: the same words
//	netexec get [flags] URL                 ask http://HOST:PORT/PATH or udp://HOST:PORT/WORD, each time anew
//	netexec hold URL                        read a stream until its server or the network ends it, or stdin ends
//	netexec dig TYPE NAME                   the records of a name, with the search list of /etc/resolv.conf
//	netexec host NAME                       addresses, as programs find them
//	netexec resolve FILE NAME               append the pod's DNS server's answers to a file until it is killed
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
