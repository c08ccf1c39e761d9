// Helm's own engine, values, schema check and linter, without what talks to clusters and registries: those are four
// fifths of Helm and of the time that it takes to build.
//
//	helm template NAME CHART --namespace N --kube-version V --values FILE     YAML documents, tests included
//	helm notes    NAME CHART ...                                              NOTES.txt
//	helm lint     NAME CHART ...                                              what the linter says; 1 on warnings, too
package main

import (
	"flag"
	"fmt"
	"os"
	"path"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

func main() {
	if len(os.Args) < 4 {
		fail(fmt.Errorf("usage: helm template|notes|lint NAME CHART [--namespace N] [--kube-version V] [--values FILE]"))
	}
	command, name, folder := os.Args[1], os.Args[2], os.Args[3]
	flags := flag.NewFlagSet(command, flag.ExitOnError)
	namespace := flags.String("namespace", "default", "namespace of the release")
	version := flags.String("kube-version", "", "version of Kubernetes")
	file := flags.String("values", "", "file with values")
	_ = flags.Parse(os.Args[4:])
	values := chartutil.Values{}
	if *file != "" {
		found, err := chartutil.ReadValuesFile(*file)
		fail(err)
		values = found
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	if *version != "" {
		found, err := chartutil.ParseKubeVersion(*version)
		fail(err)
		capabilities.KubeVersion = *found
	}
	if command == "lint" {
		linted(lint.AllWithKubeVersion(folder, values, *namespace, &capabilities.KubeVersion))
		return
	}
	loaded, err := loader.Load(folder)
	fail(err)
	files, err := rendered(loaded, values, name, *namespace, capabilities)
	fail(err)
	show(files, command == "notes")
}

func rendered(
	loaded *chart.Chart, values chartutil.Values, name, namespace string, capabilities *chartutil.Capabilities,
) (map[string]string, error) {
	if wanted := loaded.Metadata.KubeVersion; wanted != "" &&
		!chartutil.IsCompatibleRange(wanted, capabilities.KubeVersion.Version) {
		return nil, fmt.Errorf("chart requires kubeVersion: %s, not %s", wanted, capabilities.KubeVersion.Version)
	}
	if err := chartutil.ProcessDependenciesWithMerge(loaded, values); err != nil {
		return nil, err
	}
	release := chartutil.ReleaseOptions{Name: name, Namespace: namespace, Revision: 1, IsInstall: true}
	given, err := chartutil.ToRenderValues(loaded, values, release, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(loaded, given)
}

func show(files map[string]string, notes bool) {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		isNotes := strings.HasSuffix(name, "NOTES.txt")
		switch {
		case isNotes != notes, strings.HasPrefix(path.Base(name), "_"), strings.TrimSpace(files[name]) == "":
		case notes:
			fmt.Println(files[name])
		default:
			fmt.Printf("---\n# Source: %s\n%s\n", name, files[name])
		}
	}
}

func linted(found support.Linter) {
	for _, message := range found.Messages {
		fmt.Println(message.Error())
	}
	if found.HighestSeverity >= support.WarningSev {
		os.Exit(1)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}
