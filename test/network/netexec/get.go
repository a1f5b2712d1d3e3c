package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// get asks a number of times, each over a connection of its own, and prints each answer or error as a line. It fails
// if nothing answers.
func get(args []string) error {
	flags := flag.NewFlagSet("get", flag.ExitOnError)
	n := flags.Int("n", 1, "how often")
	timeout := flags.Duration("timeout", 2*time.Second, "how long to wait for an answer")
	every := flags.Duration("every", 0, "pause between questions")
	from := flags.String("from", "", "address to ask from")
	untilEOF := flags.Bool("until-eof", false, "ask until stdin ends, rather than -n times")
	clients := flags.Int("clients", 1, "how many ask at the same time, each -n times")
	if err := flags.Parse(args); err != nil {
		return err
	}
	target, err := url.Parse(flags.Arg(0))
	if err != nil {
		return err
	}
	a := asker{dialer: net.Dialer{Timeout: *timeout}, timeout: *timeout, target: target}
	if *from != "" {
		a.dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(*from)}
	}
	ended := make(chan struct{})
	if *untilEOF {
		go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
		*n = math.MaxInt
	}
	var answered atomic.Bool
	var asking sync.WaitGroup
	for range *clients {
		asking.Go(func() { a.askOften(*n, *every, ended, &answered) })
	}
	asking.Wait()
	if !answered.Load() {
		return fmt.Errorf("%s has not answered", target)
	}
	return nil
}

type asker struct {
	dialer  net.Dialer
	timeout time.Duration
	target  *url.URL
}

// askOften asks n times, or until ended is closed.
func (a *asker) askOften(n int, every time.Duration, ended <-chan struct{}, answered *atomic.Bool) {
	for range n {
		answer, err := a.ask()
		if err != nil {
			answer = "error: " + err.Error()
		} else {
			answered.Store(true)
		}
		fmt.Println(answer)
		select {
		case <-ended:
			return
		case <-time.After(every):
		}
	}
}

func (a *asker) ask() (string, error) {
	if a.target.Scheme == "udp" {
		return a.askUDP()
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: a.dialer.DialContext}
	client := http.Client{Timeout: a.timeout, Transport: transport}
	response, err := client.Get(a.target.String())
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func (a *asker) askUDP() (string, error) {
	conn, err := net.Dial("udp", a.target.Host)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(a.timeout))
	if _, err := io.WriteString(conn, strings.TrimPrefix(a.target.Path, "/")); err != nil {
		return "", err
	}
	buffer := make([]byte, 1<<10)
	read, err := conn.Read(buffer)
	return string(buffer[:read]), err
}

// hold reads a stream until stdin ends. It fails when the stream ends before, or pauses for longer than a few
// retransmissions take.
func hold(args []string) error {
	target, err := url.Parse(args[0])
	if err != nil {
		return err
	}
	conn, err := net.DialTimeout("tcp", target.Host, 5*time.Second)
	if err != nil {
		return err
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", target.Path, target.Host)
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
		_ = conn.Close()
	}()
	buffer, total := make([]byte, 1<<10), 0
	for {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, err := conn.Read(buffer)
		if total += n; err == nil {
			continue
		}
		select {
		case <-ended:
			fmt.Println("held:", total, "bytes")
			return nil
		default:
			return err
		}
	}
}
