package main

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/serviceranges"
	"github.com/coxswain-dev/coxswain/controllers"
)

// `coxswain certs` makes the credentials with which the parts of a control plane on several machines authenticate
// each other: four CAs (etcd has its own, because its clients may read and write everything; front proxies have,
// because theirs may be any user; nodes' serving certificates have, because no client of the API server may take a node
// for it), certificates with their keys, the key that signs service accounts' tokens,
// and kubeconfigs. The names below pki/ are kubeadm's.

// certsFlags select the credentials to make.
type certsFlags struct {
	dir          string
	server       string
	sans         []string
	etcdSANs     []string
	serviceCIDRs []string
	nodes        int
	prefixes     []string
	validity     time.Duration
	renew        bool
	components   componentFlags
	changed      func(flag string) bool
}

func (f *certsFlags) add(fs *pflag.FlagSet) {
	f.addServer(fs)
	f.addValidity(fs)
	fs.StringSliceVar(&f.sans, "tls-san", nil, "further names and addresses of the API server, for its certificate")
	fs.StringSliceVar(&f.etcdSANs, "etcd-san", nil,
		"names and addresses of etcd's members, for their certificates, besides localhost")
	fs.StringSliceVar(&f.serviceCIDRs, "service-cluster-ip-range", []string{"10.96.0.0/16"},
		"CIDRs of cluster IPs, of which the Service kubernetes has the first")
	fs.IntVar(&f.nodes, "nodes", 3, "for how many Nodes of each --node-prefix identities are made")
	fs.StringSliceVar(&f.prefixes, "node-prefix", []string{"node-"}, "prefixes of the Nodes' names; each "+
		"prefix has a kubeconfig of its own, named after it, for a machine of its own")
}

func (f *certsFlags) addServer(fs *pflag.FlagSet) {
	fs.StringVar(&f.server, "server", "https://127.0.0.1:6443",
		"address of the API server for clients; new kubeconfigs name it and, with this flag, old ones too")
}

func (f *certsFlags) addValidity(fs *pflag.FlagSet) {
	fs.DurationVar(&f.validity, "validity", 365*24*time.Hour,
		"how long new certificates are valid, other than those of the CAs (ten years)")
}

func newCerts() *cobra.Command {
	f := &certsFlags{}
	cmd := &cobra.Command{
		Use: "certs",
		Short: "Make, renew and check the certificates and kubeconfigs of a control plane of several processes or " +
			"machines",
		Long: `Make the certificates, keys and kubeconfigs of a control plane whose parts are processes of
their own, on one machine or many: in --data-dir, from where they are brought to where they
are needed. All files have mode 0600.

What is there already and does what the flags ask for stays as it is, so that the command can be
run again, also to add nodes or names. What is missing, has expired or lacks a name is made anew;
with --renew everything is but the CAs and the service accounts' key. Certificates of another CA
are replaced with --renew only, and what is left of a CA or of that key never is.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.changed = cmd.Flags().Changed
			all, err := f.credentials()
			if err != nil {
				return err
			}
			if err := f.run(cmd.OutOrStdout(), all); err != nil {
				return err
			}
			return f.writeComponents()
		},
	}
	cmd.PersistentFlags().StringVar(&f.dir, "data-dir", "./.coxswain",
		"folder of the kubeconfigs, with the certificates and keys in pki below it")
	f.add(cmd.Flags())
	cmd.Flags().BoolVar(&f.renew, "renew", false, "renew everything but the CAs and the service accounts' key")
	cmd.Flags().StringVar(&f.components.dir, "components-dir", "", "folder in which each component gets a folder "+
		"of its own with the files that it needs: etcd, apiserver, controllers, scheduler, admin, and one "+
		"for each --node-prefix")
	cmd.Flags().StringToIntVar(&f.components.replicas, "component-replicas", nil, "how many there are of components, "+
		"each with keys, certificates and a folder of its own, such as etcd=3,apiserver=3,controllers=2,scheduler=2: "+
		"etcd-1, etcd-2 and so on. The names of --etcd-san are then the members', in this order")
	cmd.Flags().StringToStringVar(&f.components.owners, "component-owner", nil, "IDs of the users, and of their "+
		"groups, that own these folders, such as etcd=2379,apiserver=6443; default this user")
	cmd.Flags().BoolVar(&f.components.signing, "component-signing", false, "give the controllers the keys of the "+
		"CA, of that of nodes' serving certificates and of the service accounts too, with which they sign "+
		"certificates and tokens in Secrets")
	cmd.AddCommand(f.newRenew(), f.newCheckExpiration())
	return cmd
}

func (f *certsFlags) newRenew() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "renew all|NAME...",
		Short: "Renew certificates and kubeconfigs, with the names and users that they have",
		Long: `Make certificates and kubeconfigs anew with new keys, with the names and users that they have.
NAME is as check-expiration lists them. Processes that run read their files again by themselves.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.renew, f.changed = true, cmd.Flags().Changed
			all, err := f.found()
			if err != nil {
				return err
			}
			if all, err = chosen(all, args); err != nil {
				return err
			}
			return f.run(cmd.OutOrStdout(), all)
		},
	}
	f.addServer(cmd.Flags())
	f.addValidity(cmd.Flags())
	return cmd
}

func (f *certsFlags) newCheckExpiration() *cobra.Command {
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "check-expiration",
		Short: "List when certificates and kubeconfigs expire",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.checkExpiration(cmd.OutOrStdout(), within)
		},
	}
	cmd.Flags().DurationVar(&within, "fail-within", 0,
		"fail if one expires within this time, for scripts and alerts; one that has expired always fails")
	return cmd
}

// credential is a file, or two, that `coxswain certs` makes.
type credential interface {
	// name is the file's name below pki or the data directory, without its extension.
	name() string
	// authority is the CA's name.
	authority() string
	// certificates returns the present certificates, or fs.ErrNotExist if there are none.
	certificates(f *certsFlags) ([]*x509.Certificate, error)
	// good reports whether the present certificates satisfy the flags, apart from expiry.
	good(f *certsFlags, have []*x509.Certificate) bool
	// make makes a new one, which keeps the additional names of the present one.
	make(f *certsFlags, ca *pki.CA, have []*x509.Certificate) error
}

const (
	clusterCA    = "ca"
	etcdCA       = "etcd/ca"
	frontProxyCA = "front-proxy-ca"
	// kubeletServingCA signs the nodes' serving certificates.
	kubeletServingCA = "kubelet-serving-ca"

	// frontProxyClient is the user of the certificate by which extension servers recognize the API server, and the
	// name of its file.
	frontProxyClient = "front-proxy-client"
)

// caNames are the common names of the CAs.
var caNames = map[string]string{clusterCA: "coxswain", etcdCA: "coxswain-etcd", frontProxyCA: frontProxyCA,
	kubeletServingCA: kubeletServingCA}

// credentials returns everything that the flags ask for.
func (f *certsFlags) credentials() ([]credential, error) {
	server, err := f.serverHosts()
	if err != nil {
		return nil, err
	}
	if err := f.components.checkReplicas(); err != nil {
		return nil, err
	}
	var all []credential
	for _, at := range f.components.instances("apiserver") {
		all = append(all, serverCredentials(at, server)...)
	}
	for i, at := range f.components.instances("etcd") {
		all = append(all, etcdCredentials(at, f.memberHosts(i))...)
	}
	all = append(all, &kubeconfigFile{"admin", []identity{adminIdentity}},
		&kubeconfigFile{"super-admin", []identity{superAdminIdentity}})
	users := []identity{controllersIdentity}
	for _, account := range controllers.Accounts() {
		users = append(users, controllerIdentity(account))
	}
	for _, p := range partIdentities {
		for _, at := range f.components.instances(p.name) {
			all = append(all, &kubeconfigFile{at.or(p.name), []identity{p.identity}})
		}
	}
	for _, at := range f.components.instances("controllers") {
		all = append(all, &kubeconfigFile{at.or("controllers"), users})
	}
	if f.nodes < 0 || f.nodes > 10000 {
		return nil, errors.New("--nodes: must be between 0 and 10000")
	}
	for _, prefix := range f.prefixes {
		name := strings.TrimRight(prefix, "-.")
		if name == "" || slices.ContainsFunc(all, func(c credential) bool {
			return c.name() == name+datadir.KubeconfigSuffix
		}) {
			return nil, fmt.Errorf("--node-prefix: %q cannot name a kubeconfig of its own", prefix)
		}
		var users []identity
		for _, node := range (&nodeFlags{count: f.nodes, prefix: prefix}).names() {
			users = append(users, nodeIdentity(node))
		}
		if len(users) > 0 {
			all = append(all, &kubeconfigFile{name, users})
		}
	}
	return all, nil
}

// serverHosts returns the names of the API server: that of --server, those that pods use, and those of
// the flags.
func (f *certsFlags) serverHosts() ([]string, error) {
	u, err := url.Parse(f.server)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("--server: %q is not an https URL", f.server)
	}
	cidrs, err := serviceranges.Parse(f.serviceCIDRs)
	if err != nil {
		return nil, err
	}
	hosts := append(slices.Clone(serverNames), u.Hostname())
	for _, cidr := range cidrs {
		hosts = append(hosts, serviceranges.KubernetesIP(cidr).String())
	}
	hosts = append(hosts, f.sans...)
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}

// chosen returns the credentials with the names, or all.
func chosen(all []credential, names []string) ([]credential, error) {
	if slices.Equal(names, []string{"all"}) {
		return all, nil
	}
	var some []credential
	for _, name := range names {
		i := slices.IndexFunc(all, func(c credential) bool { return c.name() == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no certificate or kubeconfig %q; check-expiration lists them", name)
		}
		some = append(some, all[i])
	}
	return some, nil
}

// run makes what is due.
func (f *certsFlags) run(out io.Writer, all []credential) error {
	if f.validity < 10*time.Second {
		return errors.New("--validity: must be ten seconds at least")
	}
	if err := datadir.KeepPrivate(f.dir); err != nil {
		return err
	}
	cas := map[string]*pki.CA{}
	for name, common := range caNames {
		var err error
		if cas[name], err = pki.OpenNamedCA(f.pki(name), common); err != nil {
			return err
		}
	}
	if err := f.ensureServiceAccountKey(); err != nil {
		return err
	}
	if err := f.refuseOthers(cas, all); err != nil {
		return err
	}
	made := 0
	for _, c := range all {
		ca := cas[c.authority()]
		have, err := c.certificates(f)
		if err == nil && !f.renew && valid(ca, have) && c.good(f, have) {
			continue
		}
		if err := c.make(f, ca, have); err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		made++
		fmt.Fprintln(out, "made", c.name())
	}
	if made == 0 {
		fmt.Fprintf(out, "%s has everything; nothing was changed.\n", f.dir)
	}
	return nil
}

// refuseOthers returns an error for certificates of another CA, which are only replaced on demand.
func (f *certsFlags) refuseOthers(cas map[string]*pki.CA, all []credential) error {
	if f.renew {
		return nil
	}
	for _, c := range all {
		have, err := c.certificates(f)
		if err != nil {
			continue // missing or broken
		}
		for _, cert := range have {
			if cert.CheckSignatureFrom(cas[c.authority()].Certificate()) != nil {
				return fmt.Errorf("%s is of another CA than pki/%s.crt: coxswain certs renew %[1]s replaces it",
					c.name(), c.authority())
			}
		}
	}
	return nil
}

// valid reports whether certificates are the CA's and within their time.
func valid(ca *pki.CA, certs []*x509.Certificate) bool {
	for _, cert := range certs {
		_, err := cert.Verify(x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		if err != nil {
			return false
		}
	}
	return len(certs) > 0
}

func (f *certsFlags) pki(name string) string {
	return filepath.Join(f.dir, "pki", filepath.FromSlash(name))
}

// ensureServiceAccountKey makes sa.key, and sa.pub beside it for components that only verify. An
// existing sa.pub may hold other keys as well.
func (f *certsFlags) ensureServiceAccountKey() error {
	private, public := f.pki("sa.key"), f.pki("sa.pub")
	if err := pki.EnsureKey(private); err != nil {
		return err
	}
	key, err := authn.ReadSigningKey(private)
	if err != nil {
		return err
	}
	have, err := authn.ReadPublicKeys(public)
	if errors.Is(err, fs.ErrNotExist) {
		content, err := pki.PublicKeyPEM(key.Public())
		if err != nil {
			return err
		}
		return pki.WriteSecret(public, content)
	}
	if err != nil {
		return err
	}
	own := key.Public().(interface{ Equal(crypto.PublicKey) bool }) // as every public key of the standard library
	if !slices.ContainsFunc(have, func(k crypto.PublicKey) bool { return own.Equal(k) }) {
		return fmt.Errorf("%s does not have the public key of %s: move away the one that is wrong", public, private)
	}
	return nil
}

// checkExpiration lists all certificates, and fails if one is about to expire.
func (f *certsFlags) checkExpiration(out io.Writer, within time.Duration) error {
	all, err := f.found()
	if err != nil {
		return err
	}
	now := time.Now()
	var near []string
	table := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	row := func(name, authority string, cert *x509.Certificate) {
		left := cert.NotAfter.Sub(now)
		text := "<invalid>"
		if left > 0 {
			text = duration.ShortHumanDuration(left)
		}
		if left <= within {
			near = append(near, name)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", name, cert.NotAfter.UTC().Format("Jan 02, 2006 15:04 MST"),
			text, authority)
	}
	fmt.Fprintln(table, "CERTIFICATE\tEXPIRES\tRESIDUAL TIME\tCERTIFICATE AUTHORITY")
	for _, c := range all {
		certs, err := c.certificates(f)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		row(c.name(), c.authority(), slices.MinFunc(certs, func(a, b *x509.Certificate) int {
			return a.NotAfter.Compare(b.NotAfter)
		}))
	}
	fmt.Fprintln(table, "\t\t\t")
	fmt.Fprintln(table, "CERTIFICATE AUTHORITY\tEXPIRES\tRESIDUAL TIME\t")
	for _, name := range []string{clusterCA, etcdCA, frontProxyCA, kubeletServingCA} {
		if ca, err := readCertificate(f.pki(name) + ".crt"); err == nil {
			row(name, "", ca)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(near) > 0 {
		return fmt.Errorf("expired, or about to: %s", strings.Join(near, ", "))
	}
	return nil
}

// sortedHosts are the names and addresses of a server's certificate.
func sortedHosts(cert *x509.Certificate) []string {
	hosts := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

// covers reports whether a certificate is valid for all hosts.
func covers(cert *x509.Certificate, hosts []string) bool {
	have := sortedHosts(cert)
	return !slices.ContainsFunc(hosts, func(h string) bool {
		if ip := net.ParseIP(h); ip != nil {
			h = ip.String()
		}
		return !slices.Contains(have, h)
	})
}
