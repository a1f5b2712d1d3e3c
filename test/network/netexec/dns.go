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

// dig prints the data of each record of a name that the pod's DNS server has, over UDP and over TCP, where both must
// say the same.
func dig(args []string) error {
	kind, ok := dns.StringToType[strings.ToUpper(args[0])]
	if !ok {
		return fmt.Errorf("%s is not a type of records", args[0])
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
	var of [2][]string
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
				of[i] = append(of[i], strings.TrimPrefix(record.String(), record.Header().String()))
			}
		}
	}
	if len(of[0]) != len(of[1]) {
		return nil, fmt.Errorf("%v over UDP and %v over TCP", of[0], of[1])
	}
	return of[0], nil
}

// resolve asks the pod's DNS server for the address of a name until it is killed, each question once, and appends each
// answer or error to a file as a line.
func resolve(args []string) error {
	flags := flag.NewFlagSet("resolve", flag.ExitOnError)
	every := flags.Duration("every", 20*time.Millisecond, "pause between questions")
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
