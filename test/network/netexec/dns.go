package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// dig queries the pod's DNS server for a name, over UDP and over TCP, and prints the data of each record. It fails if
// the two differ.
func dig(args []string) error {
	kind, ok := dns.StringToType[strings.ToUpper(args[0])]
	if !ok {
		return fmt.Errorf("%s is not a record type", args[0])
	}
	config, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil {
		return err
	}
	for _, name := range config.NameList(args[1]) {
		answers, err := digAt(net.JoinHostPort(config.Servers[0], config.Port), name, kind)
		if err != nil {
			return err
		}
		if len(answers) > 0 {
			fmt.Println(strings.Join(answers, "\n"))
			return nil
		}
	}
	return fmt.Errorf("%s has no records of type %s", args[1], args[0])
}

func digAt(server, name string, kind uint16) ([]string, error) {
	var records [2][]string
	for i, network := range []string{"udp", "tcp"} {
		message := new(dns.Msg)
		message.SetQuestion(name, kind)
		client := dns.Client{Net: network}
		reply, _, err := client.Exchange(message, server)
		if err != nil {
			return nil, err
		}
		for _, record := range reply.Answer {
			if record.Header().Rrtype == kind {
				records[i] = append(records[i], strings.TrimPrefix(record.String(), record.Header().String()))
			}
		}
	}
	if len(records[0]) != len(records[1]) {
		return nil, fmt.Errorf("%v over UDP and %v over TCP", records[0], records[1])
	}
	return records[0], nil
}

// resolve queries the pod's DNS server for the address of a name until the process is killed, without retries, and
// appends each response or error to a file as a line.
func resolve(args []string) error {
	flags := flag.NewFlagSet("resolve", flag.ExitOnError)
	every := flags.Duration("every", 20*time.Millisecond, "pause between queries")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil {
		return err
	}
	out, err := os.OpenFile(flags.Arg(0), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	server, client := net.JoinHostPort(config.Servers[0], config.Port), dns.Client{Timeout: 2 * time.Second}
	for {
		line := ""
		reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(flags.Arg(1), dns.TypeA), server)
		switch {
		case err != nil:
			line = "error: " + err.Error()
		case len(reply.Answer) != 1:
			line = "error: " + dns.RcodeToString[reply.Rcode]
		default:
			line = reply.Answer[0].(*dns.A).A.String()
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
		time.Sleep(*every)
	}
}

func host(args []string) error {
	addresses, err := net.LookupHost(args[0])
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(addresses, "\n"))
	return nil
}
