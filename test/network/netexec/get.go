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

// get sends a number of requests, each on a connection of its own, and prints each response or error as a line. It
// fails if there is no response.
func get(args []string) error {
	flags := flag.NewFlagSet("get", flag.ExitOnError)
	n := flags.Int("n", 1, "number of requests")
	timeout := flags.Duration("timeout", 2*time.Second, "how long to wait for a response")
	every := flags.Duration("every", 0, "pause between requests")
	from := flags.String("from", "", "source address")
	untilEOF := flags.Bool("until-eof", false, "send requests until stdin ends, instead of -n")
	clients := flags.Int("clients", 1, "number of concurrent clients, with -n requests each")
	if err := flags.Parse(args); err != nil {
		return err
	}
	target, err := url.Parse(flags.Arg(0))
	if err != nil {
		return err
	}
	r := requester{dialer: net.Dialer{Timeout: *timeout}, timeout: *timeout, target: target}
	if *from != "" {
		r.dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(*from)}
	}
	ended := make(chan struct{})
	if *untilEOF {
		go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
		*n = math.MaxInt
	}
	var success atomic.Bool
	var running sync.WaitGroup
	for range *clients {
		running.Go(func() { r.repeat(*n, *every, ended, &success) })
	}
	running.Wait()
	if !success.Load() {
		return fmt.Errorf("no response from %s", target)
	}
	return nil
}

type requester struct {
	dialer  net.Dialer
	timeout time.Duration
	target  *url.URL
}

// repeat sends n requests, or sends requests until ended is closed. It sets success if there is a response.
func (r *requester) repeat(n int, every time.Duration, ended <-chan struct{}, success *atomic.Bool) {
	for range n {
		line, err := r.request()
		if err != nil {
			line = "error: " + err.Error()
		} else {
			success.Store(true)
		}
		fmt.Println(line)
		select {
		case <-ended:
			return
		case <-time.After(every):
		}
	}
}

func (r *requester) request() (string, error) {
	if r.target.Scheme == "udp" {
		return r.requestUDP()
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: r.dialer.DialContext}
	client := http.Client{Timeout: r.timeout, Transport: transport}
	response, err := client.Get(r.target.String())
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func (r *requester) requestUDP() (string, error) {
	conn, err := net.Dial("udp", r.target.Host)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(r.timeout))
	if _, err := io.WriteString(conn, strings.TrimPrefix(r.target.Path, "/")); err != nil {
		return "", err
	}
	buffer := make([]byte, 1<<10)
	read, err := conn.Read(buffer)
	return string(buffer[:read]), err
}

// hold reads a stream until stdin ends. It fails if the stream ends before that, or pauses for longer than a few
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
