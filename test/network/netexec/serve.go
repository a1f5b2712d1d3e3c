package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// serve serves HTTP and UDP until the process is killed.
func serve(args []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	overHTTP := flags.String("http", ":8080", "address to serve HTTP on")
	overUDP := flags.String("udp", ":8081", "address to serve UDP on")
	if err := flags.Parse(args); err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	packets, err := net.ListenPacket("udp", *overUDP)
	if err != nil {
		return err
	}
	go serveUDP(packets, name)
	mux := http.NewServeMux()
	mux.HandleFunc("/hostname", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) })
	mux.HandleFunc("/clientip", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, hostOf(r.RemoteAddr)) })
	mux.HandleFunc("/stream", stream)
	mux.HandleFunc("/header/{name}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get(r.PathValue("name")))
	})
	return (&http.Server{Addr: *overHTTP, Handler: mux, ReadHeaderTimeout: time.Minute}).ListenAndServe()
}

// stream writes a byte every ten milliseconds.
func stream(w http.ResponseWriter, r *http.Request) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for r.Context().Err() == nil {
		if _, err := io.WriteString(w, "."); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		<-tick.C
	}
}

func serveUDP(packets net.PacketConn, name string) {
	buffer := make([]byte, 1<<10)
	for {
		n, from, err := packets.ReadFrom(buffer)
		if err != nil {
			continue
		}
		response := map[string]string{"hostname": name, "clientip": hostOf(from.String())}[string(buffer[:n])]
		_, _ = packets.WriteTo([]byte(response), from)
	}
}

func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}
